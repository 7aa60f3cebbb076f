"""The message format that a Jinja template expects, found by test renderings as in llama-server."""

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
    """The message format of one template.

    typed: content is a list of parts, not a text.  system: the template has a system role.
    text_arguments: a call's arguments are JSON text.
    null_content: a message with calls and no text has the content null.
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
    """Return the message format of a template.  Raises jinja2.TemplateSyntaxError."""
    plain, typed = (
        _shows_needle(template, [_user(needs)])
        for needs in (TemplateNeeds(), TemplateNeeds(typed=True))
    )
    needs = TemplateNeeds(typed=typed and not plain)
    text_arguments, null_content = _call_format(template, needs)
    return TemplateNeeds(
        typed=needs.typed,
        system=_has_system_role(template, needs) or not (plain or typed),
        text_arguments=text_arguments,
        null_content=null_content,
    )


def _has_system_role(template: str, needs: TemplateNeeds) -> bool:
    system = {"role": "system", "content": needs.content(_NEEDLE)}
    return _shows_needle(template, [system, _user(needs, "hi")])


def _call_format(template: str, needs: TemplateNeeds) -> tuple[bool, bool]:
    """Return the first text_arguments and null_content with which the template shows a call."""
    for null_content in (False, True):
        for text_arguments in (False, True):
            text = _render(template, _call(needs, text_arguments, null_content), tools=[_TOOL])
            without = _render(template, [_user(needs, "hi")], tools=[_TOOL])
            n_new = text.count(_NEEDLE) - without.count(_NEEDLE)
            # A template that encodes JSON text once more escapes its quotes; one that does not
            # encode a mapping prints Python's form of it.
            escaped = f'{_NEEDLE}\\"' if text_arguments else f"'{_NEEDLE}'"
            if n_new > 0 and escaped not in text:
                return text_arguments, null_content
    return False, False


def _call(
    needs: TemplateNeeds, text_arguments: bool, null_content: bool
) -> list[Mapping[str, object]]:
    arguments: object = {_NEEDLE: "x"}
    function = {
        "name": "needle_tool",
        "arguments": json.dumps(arguments) if text_arguments else arguments,
    }
    call = {"id": "call00001", "type": "function", "function": function}
    content = None if null_content else needs.content("")
    return [
        _user(needs, "hi"),
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {
            "role": "tool",
            "content": needs.content("1"),
            "name": "needle_tool",
            "tool_call_id": "call00001",
        },
    ]


def _user(needs: TemplateNeeds, text: str = _NEEDLE) -> Mapping[str, object]:
    return {"role": "user", "content": needs.content(text)}


def _shows_needle(template: str, messages: Sequence[Mapping[str, object]]) -> bool:
    return _NEEDLE in _render(template, messages)


def _render(template: str, messages: Sequence[Mapping[str, object]], tools: object = None) -> str:
    """Return the rendered text, or an empty one if the template fails."""
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
