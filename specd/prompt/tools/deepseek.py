"""DeepSeek's calls: V2.5, V3 and R1 with fenced JSON, V3.1 with plain JSON."""

from __future__ import annotations

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, read_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect_after_space,
    match_after_space,
    match_literal,
    read_until,
    skip_space,
)
from specd.prompt.tools.tool_format import ToolFormat

#: The vocabulary's own special characters first; small distilled models write others.
_SPELLINGS = tuple((bar, joint) for bar in "｜|" for joint in "▁_ ")


def _spelled(words: str) -> tuple[str, ...]:
    return tuple(f"<{bar}{words.replace(' ', joint)}{bar}>" for bar, joint in _SPELLINGS)


_CALLS, _CALLS_END = _spelled("tool calls begin"), _spelled("tool calls end")
_CALL, _CALL_END = _spelled("tool call begin"), _spelled("tool call end")
_SEPARATOR = _spelled("tool sep")


def _read(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG001
    yield from match_literal(source, *_CALLS)
    yield from expect_after_space(source, *_CALL)
    calls = [(yield from _call(source))]
    while (yield from match_after_space(source, *_CALL, *_CALLS_END)) in _CALL:
        calls.append((yield from _call(source)))
    return calls


def _call(source: TextStream) -> Reading[ToolCall]:
    """Read `name<sep>{…}`, or `function<sep>name`, a line end and the fence."""
    name, _ = yield from read_until(source, *_SEPARATOR)
    yield from skip_space(source)
    begin = source.at
    try:
        arguments = yield from read_json(source)
    except NotAToolCall:
        source.at = begin
        name, _ = yield from read_until(source, "\n")
        yield from match_after_space(source, "```json", "```")
        yield from skip_space(source)
        arguments = yield from read_json(source)
        yield from match_after_space(source, "```")
    yield from match_after_space(source, *_CALL_END)
    if not name.strip():
        raise NotAToolCall
    return ToolCall(name=name.strip(), arguments=arguments_of(arguments))


DEEPSEEK = ToolFormat(
    (*_CALLS, *_CALL),
    _read,
    tokens=tuple(tags[0] for tags in (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)),
)
