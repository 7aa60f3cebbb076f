"""Calls of Qwen3-Coder: `<function=name><parameter=key>value</parameter></function>`.

Values are bare text; the tool's schema has their types.
"""

from __future__ import annotations

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect_after_space,
    match_after_space,
    match_literal,
    read_until,
)
from specd.prompt.tools.tool_format import ToolFormat

#: Optional tags around functions; models sometimes omit the first.
_WRAPPERS = {"<tool_call>": "</tool_call>", "<seed:tool_call>": "</seed:tool_call>"}
_FUNCTION = "<function="


def _read(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    yield from match_literal(source, *_WRAPPERS)
    yield from expect_after_space(source, _FUNCTION)
    calls = [(yield from _function(source, tools))]
    closers = _WRAPPERS.values()
    while (yield from match_after_space(source, _FUNCTION, *closers)) == _FUNCTION:
        calls.append((yield from _function(source, tools)))
    return calls


def _function(source: TextStream, tools: Tools) -> Reading[ToolCall]:
    """Read a function after its `<function=`."""
    name = yield from _name(source)
    if not name:
        raise NotAToolCall
    arguments: dict[str, object] = {}
    while (yield from expect_after_space(source, "<parameter=", "</function>")) == "<parameter=":
        key = yield from _name(source)
        text, _ = yield from read_until(source, "</parameter>")
        arguments[key] = tools.value(name, key, text.removeprefix("\n").removesuffix("\n"))
    return ToolCall(name=name, arguments=arguments)


def _name(source: TextStream) -> Reading[str]:
    name, _ = yield from read_until(source, ">", "\n")
    return name.strip().strip("\"'")


XML_FUNCTIONS = ToolFormat(
    (_FUNCTION, *_WRAPPERS), _read, tokens=tuple(tag for pair in _WRAPPERS.items() for tag in pair)
)
