"""Calls of Qwen3-Coder: `<function=name><parameter=key>value</parameter></function>`.

Values are bare text; the tool's schema has their types.
"""

from __future__ import annotations

from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect,
    match_literal,
    read_until,
    skip_space,
)

#: Optional tags around functions; models sometimes omit the first.
WRAPPERS = {"<tool_call>": "</tool_call>", "<seed:tool_call>": "</seed:tool_call>"}

_FUNCTION = "<function="


@dataclass(frozen=True, slots=True)
class XmlFunctions:
    openers: tuple[str, ...] = (_FUNCTION, *WRAPPERS)
    is_only_leading: bool = False
    tokens: tuple[str, ...] = tuple(tag for pair in WRAPPERS.items() for tag in pair)

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        yield from match_literal(source, *WRAPPERS)
        yield from skip_space(source)
        yield from expect(source, _FUNCTION)
        calls = [(yield from _function(source, tools))]
        while True:
            begin = source.at
            yield from skip_space(source)
            found = yield from match_literal(source, _FUNCTION, *WRAPPERS.values())
            if found == _FUNCTION:
                calls.append((yield from _function(source, tools)))
                continue
            if not found:
                source.at = begin
            return calls


def _function(source: TextStream, tools: Tools) -> Reading[ToolCall]:
    """Read a function after its `<function=`."""
    name, _ = yield from read_until(source, ">", "\n")
    name = name.strip().strip("\"'")
    if not name:
        raise NotAToolCall
    arguments: dict[str, object] = {}
    while True:
        yield from skip_space(source)
        if (yield from expect(source, "<parameter=", "</function>")) == "</function>":
            return ToolCall(name=name, arguments=arguments)
        key, _ = yield from read_until(source, ">", "\n")
        key = key.strip().strip("\"'")
        text, _ = yield from read_until(source, "</parameter>")
        text = text.removeprefix("\n").removesuffix("\n")
        arguments[key] = tools.value(name, key, text)
