"""In which shape a Jinja template takes messages: found out by trying (as llama-server does)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from specd.prompt.jinja import TEMPLATE_ERRORS, compile_template

_NEEDLE: Final = "needle_in_the_prompt"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "needle_tool",
        "description": "d",
        "parameters": {"type": "object", "properties": {_NEEDLE: {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateNeeds:
    """typed: content is a list of parts, not a text.  system: there is a role of that name.

    text_arguments: of a call, as JSON in a text.  null_content: beside calls, where there is none.
    """

    typed: bool = False
    system: bool = True
    text_arguments: bool = False
    null_content: bool = False

    def content(self, text: str) -> object:
        return [{"type": "text", "text": text}] if self.typed else text

    def arguments(self, arguments: Mapping[str, object]) -> object:
        if self.text_arguments:
            return json.dumps(dict(arguments), ensure_ascii=False)
        return dict(arguments)


@lru_cache(maxsize=64)
def probe_template(template: str) -> TemplateNeeds:
    """Raises jinja2.TemplateSyntaxError."""
    plain, typed = (
        _shows_needle(template, [_user(shape)])
        for shape in (TemplateNeeds(), TemplateNeeds(typed=True))
    )
    shape = TemplateNeeds(typed=typed and not plain)
    text_arguments, null_content = _call_shape(template, shape)
    return TemplateNeeds(
        typed=shape.typed,
        system=_has_system_role(template, shape) or not (plain or typed),
        text_arguments=text_arguments,
        null_content=null_content,
    )


def _has_system_role(template: str, shape: TemplateNeeds) -> bool:
    system = {"role": "system", "content": shape.content(_NEEDLE)}
    return _shows_needle(template, [system, _user(shape, "hi")])


def _call_shape(template: str, shape: TemplateNeeds) -> tuple[bool, bool]:
    """text_arguments and null_content, the first pair that shows the call."""
    for null_content in (False, True):
        for text_arguments in (False, True):
            text = _render(template, _call(shape, text_arguments, null_content), tools=[_TOOL])
            without = _render(template, [_user(shape, "hi")], tools=[_TOOL])
            n_new = text.count(_NEEDLE) - without.count(_NEEDLE)
            # As JSON in a text it is escaped where the template makes JSON of it once more, and a
            # mapping without that is Python's own words for one.
            escaped = f'{_NEEDLE}\\"' if text_arguments else f"'{_NEEDLE}'"
            if n_new > 0 and escaped not in text:
                return text_arguments, null_content
    return False, False


def _call(
    shape: TemplateNeeds, text_arguments: bool, null_content: bool
) -> list[Mapping[str, object]]:
    arguments: object = {_NEEDLE: "x"}
    function = {
        "name": "needle_tool",
        "arguments": json.dumps(arguments) if text_arguments else arguments,
    }
    call = {"id": "call00001", "type": "function", "function": function}
    content = None if null_content else shape.content("")
    return [
        _user(shape, "hi"),
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {
            "role": "tool",
            "content": shape.content("1"),
            "name": "needle_tool",
            "tool_call_id": "call00001",
        },
    ]


def _user(shape: TemplateNeeds, text: str = _NEEDLE) -> Mapping[str, object]:
    return {"role": "user", "content": shape.content(text)}


def _shows_needle(template: str, messages: Sequence[Mapping[str, object]]) -> bool:
    return _NEEDLE in _render(template, messages)


def _render(template: str, messages: Sequence[Mapping[str, object]], tools: object = None) -> str:
    """An empty text where the template refuses."""
    try:
        return compile_template(template).render(
            messages=messages,
            tools=tools,
            bos_token="",
            eos_token="",
            add_generation_prompt=True,
            strftime_now=lambda _: "",
        )
    except TEMPLATE_ERRORS:
        return ""
