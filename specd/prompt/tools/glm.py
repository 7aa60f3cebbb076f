"""GLM's calls: `<tool_call>name`, then pairs of `<arg_key>` and `<arg_value>`."""

from __future__ import annotations

from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    read_until,
    read_word,
    skip_space,
)


@dataclass(frozen=True, slots=True)
class Glm:
    openers: tuple[str, ...] = ("<tool_call>",)
    is_only_leading: bool = False
    tokens: tuple[str, ...] = (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    )

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        yield from expect(source, *self.openers)
        yield from skip_space(source)
        name = yield from read_word(source)
        arguments: dict[str, object] = {}
        while True:
            yield from skip_space(source)
            if (yield from expect(source, "<arg_key>", "</tool_call>")) == "</tool_call>":
                return [ToolCall(name=name, arguments=arguments)]
            key, _ = yield from read_until(source, "</arg_key>")
            yield from skip_space(source)
            yield from expect(source, "<arg_value>")
            text, _ = yield from read_until(source, "</arg_value>")
            arguments[key.strip()] = tools.value(name, key.strip(), text)
