"""Calls as JSON between tags: Hermes, Qwen, Granite, Phi, Nemotron, Command, FireFunction, ..."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import calls_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    json_text,
    skip_closing_tag,
    skip_space,
    starts_json,
)

#: Opening and closing tags of calls; "" for no closing tag.
PAIRS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<function_call>": "</function_call>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "functools": "",
}


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """One or more objects, or lists of objects, between tags.  pairs: opening to closing tags.

    The closing tag is optional, because JSON shows where it ends.
    """

    pairs: tuple[tuple[str, str], ...]
    is_only_leading: bool = False

    @classmethod
    def of(cls, openers: Iterable[str]) -> TaggedJson:
        return cls(tuple((opener, PAIRS[opener]) for opener in openers))

    @property
    def openers(self) -> tuple[str, ...]:
        return tuple(opener for opener, _ in self.pairs)

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(tag for pair in self.pairs for tag in pair if tag)

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG002
        opener = yield from expect(source, *self.openers)
        close = dict(self.pairs)[opener]
        calls: list[ToolCall] = []
        while True:
            yield from skip_space(source)
            if calls and not (yield from starts_json(source)):
                break
            calls += calls_of(decode_json((yield from json_text(source))))
        if close:
            yield from skip_closing_tag(source, close)
        return calls
