"""GLM's calls: `<tool_call>name`, then pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    expect_after_space,
    read_until,
    read_word,
    skip_space,
)
from specd.prompt.tools.tool_format import ToolFormat

_TAGS = ("tool_call", "arg_key", "arg_value")


def _read(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    yield from expect(source, "<tool_call>")
    yield from skip_space(source)
    name = yield from read_word(source)
    arguments: dict[str, object] = {}
    while (yield from expect_after_space(source, "<arg_key>", "</tool_call>")) == "<arg_key>":
        key, _ = yield from read_until(source, "</arg_key>")
        yield from expect_after_space(source, "<arg_value>")
        text, _ = yield from read_until(source, "</arg_value>")
        arguments[key.strip()] = tools.value(name, key.strip(), text)
    return [ToolCall(name=name, arguments=arguments)]


GLM = ToolFormat(
    ("<tool_call>",), _read, tokens=tuple(tag for x in _TAGS for tag in (f"<{x}>", f"</{x}>"))
)
