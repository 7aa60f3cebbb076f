"""Rendering of a GGUF's Jinja chat template.

The template's variables are those of Hugging Face's `apply_chat_template` and of llama-server.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jinja2

from specd.core import Message, ToolCall, thinking_tags
from specd.errors import InvalidRequest, StoreError
from specd.prompt.jinja import TEMPLATE_ERRORS, compile_template
from specd.prompt.message_order import link_tool_results, normalize_messages
from specd.prompt.reasoning import is_open
from specd.prompt.template_needs import TemplateNeeds, probe_template

# llama.cpp's default for a GGUF without a template.
CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
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
    """Return the prompt for a conversation; without a template it is ChatML.

    The model continues an assistant message at the end.
    think: None means on; a string means on with this effort level.
    adds_bos: the tokenizer adds BOS, so a BOS that the template starts with is removed.
    Raises InvalidRequest with the template's own message, StoreError if the template is damaged.
    """
    source = CHATML if template is None else template
    answer = messages[-1] if add_generation_prompt and _continues_answer(messages) else None
    if answer is not None:
        messages, think = messages[:-1], False
    variables: dict[str, object] = {
        "tools": list(tools) or None,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "add_generation_prompt": add_generation_prompt,
        "enable_thinking": think is not False,
        "thinking": think is not False,  # the name in Granite's and DeepSeek's templates
        "strftime_now": lambda form: now().strftime(form),
        "date_string": now().strftime("%d %b %Y"),
        "tools_in_user_message": False,  # Llama 3: in the system text, as in llama-server
    }
    if isinstance(think, str):
        variables["reasoning_effort"] = think
    try:
        prompt = _render(source, messages, variables)
    except jinja2.TemplateSyntaxError as error:
        raise StoreError(f"the model's chat template is damaged: {error}") from error
    except TEMPLATE_ERRORS as error:
        raise InvalidRequest(f"chat template: {error}") from error
    if answer is not None:
        prompt = _append_answer(prompt, answer, source)
    return prompt.removeprefix(bos_token) if adds_bos else prompt


def _render(source: str, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
    """Render; if the template fails, try once more with normalized messages."""
    needs, template = probe_template(source), compile_template(source)
    try:
        return template.render(variables, messages=_mappings(link_tool_results(messages), needs))
    except TEMPLATE_ERRORS:
        normalized = _mappings(normalize_messages(messages), needs)
        if normalized == _mappings(link_tool_results(messages), needs):
            raise
        try:
            return template.render(variables, messages=normalized)
        except TEMPLATE_ERRORS:
            pass
        raise


def _continues_answer(messages: Sequence[Message]) -> bool:
    return len(messages) > 1 and messages[-1].role == "assistant" and not messages[-1].tool_calls


def _append_answer(prompt: str, answer: Message, template: str) -> str:
    """Return the prompt followed by the beginning of the answer."""
    tags = thinking_tags(template)
    if tags is not None and is_open(prompt, tags[0]):
        return f"{prompt}{answer.thinking}{tags[1]}\n\n{answer.content}"
    return prompt + answer.content


# ----------------------------------------------------------------------------- messages


def _mappings(messages: Sequence[Message], needs: TemplateNeeds) -> list[dict[str, object]]:
    if not needs.system:
        messages = _without_system(messages)
    return [_message_mapping(message, needs) for message in messages]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Move system texts into the following user message, for a template without that role."""
    found: list[Message] = []
    pending = ""
    for message in messages:
        if message.role == "system":
            pending += f"{message.content}\n"
        elif pending and message.role == "user":
            found.append(replace(message, content=pending + message.content))
            pending = ""
        else:
            found.append(message)
    return [*found, Message(role="user", content=pending.rstrip("\n"))] if pending else found


def _message_mapping(message: Message, needs: TemplateNeeds) -> dict[str, object]:
    """Return a message with the keys that templates use; empty ones stay undefined."""
    content = needs.content(message.content)
    if message.tool_calls and not message.content and needs.null_content:
        content = None
    mapping: dict[str, object] = {"role": message.role, "content": content}
    optional = {
        "reasoning_content": message.thinking,
        "thinking": message.thinking,
        "tool_calls": [_call_mapping(call, needs) for call in message.tool_calls],
        "name": message.tool_name,
        "tool_call_id": message.tool_call_id,
    }
    return mapping | {key: value for key, value in optional.items() if value}


def _call_mapping(call: ToolCall, needs: TemplateNeeds) -> dict[str, object]:
    function = {"name": call.name, "arguments": needs.arguments(call.arguments)}
    return {"type": "function", "function": function, "id": call.id}
