"""Converts the body of `/v1/responses` to the types of `core`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specd import core
from specd.api.openai import shared_fields
from specd.api.openai.responses.body import ResponsesBody, Tool
from specd.api.openai.responses.items import CallItem, Item, MessageItem, OutputItem, ReasoningItem
from specd.errors import InvalidRequest


def to_prompt(body: ResponsesBody) -> core.ChatPrompt:
    """Raises InvalidRequest."""
    offered = [tool for sent in body.tools for tool in _functions(sent)]
    return core.ChatPrompt(
        messages=tuple(_with_instructions(body.instructions, to_messages(body.input))),
        tools=shared_fields.tools(offered, body.tool_choice),
    )


def _with_instructions(instructions: str, messages: list[core.Message]) -> list[core.Message]:
    """One system message at most begins the chat: many templates refuse a second one.

    Codex sends its instructions and a developer's message behind them.
    """
    others = (i for i, m in enumerate(messages) if m.role != "system" or m.images)
    n_system = next(others, len(messages))
    texts = [instructions, *(message.content for message in messages[:n_system])]
    text = "\n\n".join(text for text in texts if text)
    system = [core.Message(role="system", content=text)] if text else []
    return system + messages[n_system:]


def to_request(
    body: ResponsesBody, ref: core.ModelRef, prompt: core.ChatPrompt, think: bool | str | None
) -> core.GenerateRequest:
    """Temperature is 1 where it was not sent, top_p the model's own, as in Ollama."""
    sent = {"top_p": body.top_p, "num_predict": body.max_output_tokens}
    temperature = 1.0 if body.temperature is None else body.temperature
    return core.GenerateRequest(
        model=ref.name,
        prompt=prompt,
        options={"temperature": temperature}
        | {key: value for key, value in sent.items() if value is not None},
        think=think,
        grammar=shared_fields.grammar(body.format.get("type", ""), body.format.get("schema")),
    )


# --------------------------------------------------------------------------- messages


def to_messages(items: Sequence[Item]) -> list[core.Message]:
    """Convert items to messages; consecutive items of the assistant become one message."""
    names = {item.call_id: item.name for item in items if isinstance(item, CallItem)}
    runs: list[list[core.Message]] = []
    thought = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            thought = item.text
            continue
        message = _message(item, names)
        if message.role == "assistant":
            message, thought = replace(message, thinking=thought), ""
        if runs and _belongs_to_run(message, runs[-1]):
            runs[-1].append(message)
        else:
            runs.append([message])
    if thought:
        runs.append([core.Message(role="assistant", thinking=thought)])
    return [_joined(run) for run in runs]


def _message(item: MessageItem | CallItem | OutputItem, names: dict[str, str]) -> core.Message:
    match item:
        case MessageItem():
            said = item.content
            return core.Message(
                role=shared_fields.role(item.role), content=said.text, images=said.images
            )
        case CallItem():
            return core.Message(role="assistant", tool_calls=(_call(item),))
        case OutputItem():
            return core.Message(
                role="tool",
                content=item.content.text,
                images=item.content.images,
                tool_call_id=item.call_id,
                tool_name=names.get(item.call_id, ""),
            )


def _call(item: CallItem) -> core.ToolCall:
    try:
        arguments = shared_fields.arguments(item.arguments)
    except ValueError as error:
        raise InvalidRequest(f"failed to parse function call arguments: {error}") from error
    return core.ToolCall(name=item.name, arguments=arguments, id=item.call_id)


def _belongs_to_run(message: core.Message, run: Sequence[core.Message]) -> bool:
    """Calls belong to what was said before them, and what is said between calls to the calls."""
    if not message.role == run[0].role == "assistant":
        return False
    # Of several that are one already, one of the first two calls.
    return any(said.tool_calls for said in (message, *run[:2]))


def _joined(run: Sequence[core.Message]) -> core.Message:
    """What was thought last stands for all of it, as in Ollama."""
    if len(run) == 1:
        return run[0]
    calls = (call for message in run for call in message.tool_calls)
    return core.Message(
        role="assistant",
        content="\n".join(message.content for message in run if message.content),
        thinking=next((message.thinking for message in reversed(run) if message.thinking), ""),
        images=tuple(image for message in run for image in message.images),
        tool_calls=tuple(replace(call, index=index) for index, call in enumerate(calls)),
    )


# --------------------------------------------------------------------------- tools


def _functions(tool: Tool) -> Iterator[dict[str, object]]:
    """Functions, those of a namespace under its name.

    Tools that only OpenAI's own service can run (`web_search`, ...) are not offered to the model.
    """
    if tool.type == "function":
        yield _function(tool)
    elif tool.type == "namespace":
        prefix = f"{tool.name}." if tool.name else ""
        for member in tool.tools:
            if member.type == "function":
                bare = member.name.removeprefix(prefix)
                yield _function(replace(member, name=prefix + bare))


def _function(tool: Tool) -> dict[str, object]:
    described = {} if tool.description is None else {"description": tool.description}
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function: dict[str, object] = {"name": tool.name, **described, "parameters": parameters}
    return {"type": "function", "function": function}
