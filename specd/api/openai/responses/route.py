"""`POST /v1/responses`: the route, and the conversion of its body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aiohttp import web

from specd import core, options
from specd.api import lookup
from specd.api.body import convert_body, read
from specd.api.openai import shared_fields
from specd.api.openai.chat import check_chat
from specd.api.openai.errors import NoSuchResponse
from specd.api.openai.reply import AnswerRoute
from specd.api.openai.responses.body import (
    CallItem,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
    ResponsesBody,
    Tool,
)
from specd.api.openai.responses.writer import ResponseWriter
from specd.errors import InvalidRequest


class ResponsesRoute(AnswerRoute):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, ResponsesBody)
        _refuse_stored(body)
        prompt = await convert_body(request, lambda: to_prompt(body))
        think = shared_fields.think(body.reasoning.get("effort", ""))
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await lookup.find_model(self._library, body.model)
        check_chat(ref, body.model, prompt, think)
        core_request = await convert_body(request, lambda: to_request(body, ref, prompt, think))
        return await self._reply(request, core_request, self._writer(body), streamed=body.stream)

    def _writer(self, body: ResponsesBody) -> ResponseWriter:
        return ResponseWriter(
            body=body,
            number=self._draw_id() * 1000 + self._draw_id(),
            now=self._unix_s,
        )


def _refuse_stored(body: ResponsesBody) -> None:
    """Refuse references to stored conversations; Ollama ignores them."""
    if body.previous_response_id:
        raise NoSuchResponse(str(body.previous_response_id))
    if body.conversation:
        raise InvalidRequest(
            "conversation is not supported: nothing is stored, send the whole conversation as input"
        )


# --------------------------------------------------------------------------- conversion


def to_prompt(body: ResponsesBody) -> core.ChatPrompt:
    """Convert the messages and tools.  Raises InvalidRequest."""
    offered = [tool for sent in body.tools for tool in _functions(sent)]
    return core.ChatPrompt(
        messages=tuple(_with_instructions(body.instructions, to_messages(body.input))),
        tools=shared_fields.tools(offered, body.tool_choice),
    )


def _with_instructions(instructions: str, messages: list[core.Message]) -> list[core.Message]:
    """Join the instructions and the first system messages: many templates accept only one.

    Codex sends instructions and then a developer message.
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
    """Return the request; temperature is 1 by default, top_p the model's own, as in Ollama."""
    temperature = 1.0 if body.temperature is None else body.temperature
    return core.GenerateRequest(
        model=ref,
        prompt=prompt,
        options=options.parse(
            {
                "temperature": temperature,
                "top_p": body.top_p,
                "num_predict": body.max_output_tokens,
            }
        ),
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
            return core.Message(
                role=shared_fields.role(item.role),
                content=item.content.text,
                images=item.content.images,
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
    """Return whether the message joins the run: calls join text, and text joins calls."""
    if not message.role == run[0].role == "assistant":
        return False
    # If the run has calls, one of its first two messages has some.
    return any(other.tool_calls for other in (message, *run[:2]))


def _joined(run: Sequence[core.Message]) -> core.Message:
    """Return the messages as one, with the last thinking only, as in Ollama."""
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
    """Yield the functions; the name of a namespace precedes those of its members.

    Tools that only OpenAI's own service can run (`web_search`, ...) are left out.
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
