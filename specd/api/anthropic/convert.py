"""Converts Anthropic's bodies to the types of `core`, by the rules of Ollama's layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specd import core, options
from specd.api.anthropic.schema import Block, CountBody, MessagesBody
from specd.api.body import decode_base64
from specd.api.lookup import CloudDisabled
from specd.errors import InvalidRequest
from specd.go_json_encoder import dump_json

_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "max": "max", "xhigh": "high"}
_RESULTS: Final = ("tool_result", "web_search_tool_result")
_USES: Final = ("tool_use", "server_tool_use")


def generate_request(
    body: CountBody, ref: core.ModelRef, prompt: core.ChatPrompt
) -> core.GenerateRequest:
    """Return the request; like Ollama, ignore thinking that the model cannot do."""
    wanted = think(body)
    return core.GenerateRequest(
        model=ref,
        prompt=prompt,
        options=_options(body) if isinstance(body, MessagesBody) else core.OptionValues(),
        think=None if wanted and "thinking" not in ref.capabilities else wanted,
    )


def to_prompt(body: CountBody) -> core.ChatPrompt:
    """Convert the messages and tools.  Raises InvalidRequest with Ollama's texts."""
    return core.ChatPrompt(messages=_messages(body), tools=_tools(body))


def think(body: CountBody) -> bool | str | None:
    """Return the thinking that the body asks for; None is the model's default."""
    kind = body.thinking.get("type")
    if kind == "disabled":
        return False
    effort = body.output_config.get("effort", "").strip().lower()
    return _EFFORTS.get(effort, True if kind == "enabled" else None)


def estimated_tokens(prompt: core.ChatPrompt) -> int:
    """Return an estimate of the tokens before they are counted: a quarter of the characters."""
    n_characters = sum(
        len(turn.content)
        + len(turn.thinking)
        + sum(len(dump_json(call.arguments)) for call in turn.tool_calls)
        for turn in prompt.messages
    )
    return max((n_characters + sum(len(dump_json(tool)) for tool in prompt.tools)) // 4, 1)


def _options(body: MessagesBody) -> core.OptionValues:
    return options.parse(
        {
            "num_predict": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stop": body.stop_sequences or None,
        }
    )


# --------------------------------------------------------------------------- messages


def _messages(body: CountBody) -> tuple[core.Message, ...]:
    names = {
        block.get("id", ""): block.get("name", "")
        for sent in body.messages
        for block in sent.get("content", ())
        if block.get("type") in _USES
    }
    text, _ = _texts_and_images(body.system)
    turns = [turn for sent in body.messages for turn in _turns(sent, names)]
    if not turns:
        raise InvalidRequest("messages is required")
    return (*([core.Message(role="system", content=text)] if text else []), *turns)


def _turns(sent: Mapping[str, Any], tool_names: Mapping[str, str]) -> Iterator[core.Message]:
    """Yield the messages of one turn: each tool result is a message, before the user's text."""
    role, blocks = sent.get("role", "").lower(), sent.get("content", [])
    if role == "user":
        blocks = sorted(blocks, key=lambda block: block.get("type") not in _RESULTS)
    pending: list[Block] = []
    for block in blocks:
        if block.get("type") in _RESULTS:
            yield from _turn(role, pending)
            pending = []
            yield _tool_answer(block, tool_names)
        else:
            pending.append(block)
    yield from _turn(role, pending)


def _turn(role: str, blocks: Sequence[Block]) -> Iterator[core.Message]:
    """Yield the blocks as one message, or nothing if they are empty."""
    text, images = _texts_and_images(blocks)
    uses = [block for block in blocks if block.get("type") in _USES]
    turn = core.Message(
        role=role,
        content=text,
        thinking="".join(b.get("thinking", "") for b in blocks if b.get("type") == "thinking"),
        images=images,
        tool_calls=tuple(_tool_call(block, index) for index, block in enumerate(uses)),
    )
    if turn != core.Message(role=role):
        yield turn


def _tool_call(block: Block, index: int) -> core.ToolCall:
    for needed in ("id", "name"):
        if not block.get(needed):
            raise InvalidRequest(f"{block['type']} block missing required '{needed}' field")
    return core.ToolCall(
        name=block["name"], arguments=block.get("input", {}), id=block["id"], index=index
    )


def _tool_answer(block: Block, tool_names: Mapping[str, str]) -> core.Message:
    content, call_id = block.get("content"), block.get("tool_use_id", "")
    images: tuple[bytes, ...] = ()
    if block["type"] == "web_search_tool_result":
        text = _search_results(content)
    elif isinstance(content, list):
        text, images = _texts_and_images([part for part in content if isinstance(part, dict)])
    else:
        text = content if isinstance(content, str) else ""
    return core.Message(
        role="tool",
        content=text,
        images=images,
        tool_name=tool_names.get(call_id, ""),
        tool_call_id=call_id,
    )


def _texts_and_images(blocks: Sequence[Block]) -> tuple[str, tuple[bytes, ...]]:
    """Return the joined texts and the images; ignore other kinds of blocks."""
    texts: list[str] = []
    images: list[bytes] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                text = block.get("text", "")
                texts.append(text if isinstance(text, str) else "")
            case "image":
                images.append(_image(block.get("source")))
            case "document":
                texts.append(_document(block.get("source")))
    return "".join(texts), tuple(images)


def _image(source: object) -> bytes:
    if not isinstance(source, dict):
        raise InvalidRequest("invalid image source")
    kind, data = source.get("type"), source.get("data")
    if kind != "base64":
        raise InvalidRequest(
            f"invalid image source type: {_kind_name(kind)}. Only base64 images are supported."
        )
    if not isinstance(data, str):
        raise InvalidRequest("invalid image source")
    try:
        return decode_base64(data)
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid base64 image data: {error}") from error


def _document(source: object) -> str:
    """Return a text document; refuse other kinds, which Ollama ignores."""
    kind, data = (
        (source.get("type"), source.get("data")) if isinstance(source, dict) else (None, None)
    )
    if kind != "text" or not isinstance(data, str):
        raise InvalidRequest(
            f"invalid document source type: {_kind_name(kind)}. Only text documents are supported."
        )
    return data


def _kind_name(kind: object) -> str:
    return kind if isinstance(kind, str) else ""


def _search_results(content: object) -> str:
    """Return the results of an earlier search by another service, one line each."""
    entries = content if isinstance(content, list) else [content]
    return "".join(
        f"- {entry.get('title', '')}: {entry.get('url', '')}\n"
        if entry.get("type") == "web_search_result"
        else f"{entry.get('type', '')}: {entry.get('error_code', '')}\n"
        for entry in entries
        if isinstance(entry, dict)
    )


# --------------------------------------------------------------------------- tools


def _tools(body: CountBody) -> tuple[Mapping[str, object], ...]:
    """Return the tools in OpenAI's form; none if `tool_choice` is "none"."""
    if body.tool_choice.get("type") == "none":
        return ()
    return tuple(_tool(tool) for tool in body.tools)


def _tool(tool: Mapping[str, Any]) -> Mapping[str, object]:
    if tool.get("type", "").startswith("web_search"):
        raise CloudDisabled("ollama cloud is disabled: web search is unavailable")
    described = {"description": tool["description"]} if tool.get("description") else {}
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.get("name", ""), **described, "parameters": schema},
    }
