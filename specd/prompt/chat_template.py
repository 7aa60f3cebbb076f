"""The GGUF's own Jinja chat template, rendered in a sandbox the way its authors expect.

The environment is the one of Hugging Face's `apply_chat_template`, whose output such templates
were written against; keyword arguments are llama-server's.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest, StoreError

#: What llama.cpp renders with where a GGUF has no template.
CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

# What untrusted template code raises: Jinja's own errors and those of the Python under it.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def render_chat(
    template: str | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    think: bool | str | None = None,
    adds_bos: bool = True,
    now: Callable[[], dt.datetime] = dt.datetime.now,
) -> str:
    """The conversation as the model's prompt; `template` None is ChatML.

    think: None is on; a string is an effort level besides.  A leading BOS text is cut where the
    vocabulary adds its own (`adds_bos`), or there would be two.
    Raises InvalidRequest with the template's own message, StoreError where it is no template.
    """
    variables: dict[str, object] = {
        "messages": [_as_mapping(message) for message in messages],
        "tools": list(tools) or None,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "add_generation_prompt": add_generation_prompt,
        "enable_thinking": think is not False,
        "strftime_now": lambda form: now().strftime(form),
    }
    if isinstance(think, str):
        variables["reasoning_effort"] = think
    try:
        prompt = _compiled(CHATML if template is None else template).render(variables)
    except jinja2.TemplateSyntaxError as error:
        raise StoreError(f"the model's chat template is damaged: {error}") from error
    except _TEMPLATE_FAULTS as error:
        raise InvalidRequest(f"chat template: {error}") from error
    return prompt.removeprefix(bos_token) if adds_bos else prompt


def render_text(
    template: str | None,
    text: str,
    *,
    system: str = "",
    history: Sequence[Message] = (),
    bos_token: str = "",
    eos_token: str = "",
    think: bool | str | None = None,
    adds_bos: bool = True,
) -> str:
    """`/api/generate`: one user turn after `system` and `history`; without a template, `text`."""
    if template is None:
        return text
    opening = (Message(role="system", content=system),) if system else ()
    return render_chat(
        template,
        (*opening, *history, Message(role="user", content=text)),
        bos_token=bos_token,
        eos_token=eos_token,
        think=think,
        adds_bos=adds_bos,
    )


def _as_mapping(message: Message) -> dict[str, object]:
    """A message under the names templates ask for; absent keys stay undefined."""
    mapping: dict[str, object] = {"role": message.role, "content": message.content}
    optional = {
        "reasoning_content": message.thinking,
        "thinking": message.thinking,
        "tool_calls": [_call_mapping(call) for call in message.tool_calls],
        "name": message.tool_name,
        "tool_call_id": message.tool_call_id,
    }
    return mapping | {key: value for key, value in optional.items() if value}


def _call_mapping(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": dict(call.arguments)}
    mapping: dict[str, object] = {"type": "function", "function": function}
    return mapping | ({"id": call.id} if call.id else {})


class _GenerationTag(Extension):
    """`{% generation %}` marks what a trainer learns from; a server renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML and sorts keys; models were trained on neither."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationTag],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)
