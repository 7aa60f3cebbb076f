"""Gemma's calls: `call:name{key:value,…}` between tags, with special tokens as quotes."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import finite
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect,
    expect_after_space,
    match_after_space,
    match_literal,
    read_until,
    read_word,
    skip_closing_tag,
    skip_space,
)
from specd.prompt.tools.tool_format import ToolFormat

_INTEGER = re.compile(r"-?\d{1,300}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,2})?")
_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None, "None": None}
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class _Gemma:
    """Reader of Gemma's format.  open, close: the tags.  quote: the token around strings."""

    open: str
    close: str
    quote: str

    def format(self) -> ToolFormat:
        return ToolFormat((self.open,), self._read, tokens=(self.open, self.close, self.quote))

    def _read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG002
        yield from expect(source, self.open)
        yield from expect_after_space(source, "call:")
        name = yield from read_word(source)
        yield from expect(source, "{")
        arguments = yield from self._object(source, _MAX_DEPTH)
        yield from skip_closing_tag(source, self.close)
        return [ToolCall(name=name, arguments=arguments)]

    def _object(self, source: TextStream, depth: int) -> Reading[dict[str, object]]:
        """Read an object after its opening bracket."""
        found: dict[str, object] = {}
        while not (yield from match_after_space(source, "}")):
            key, _ = yield from read_until(source, ":")
            key = key.strip().removeprefix(self.quote).removesuffix(self.quote).strip('"')
            found[key] = yield from self._value(source, depth - 1)
            if (yield from expect_after_space(source, ",", "}")) == "}":
                break
        return found

    def _list(self, source: TextStream, depth: int) -> Reading[list[object]]:
        """Read a list after its opening bracket."""
        found: list[object] = []
        while not (yield from match_after_space(source, "]")):
            found.append((yield from self._value(source, depth - 1)))
            if (yield from expect_after_space(source, ",", "]")) == "]":
                break
        return found

    def _value(self, source: TextStream, depth: int) -> Reading[object]:
        if depth <= 0:
            raise NotAToolCall
        yield from skip_space(source)
        match (yield from match_literal(source, self.quote, '"', "{", "[")):
            case "{":
                return (yield from self._object(source, depth))
            case "[":
                return (yield from self._list(source, depth))
            case "":
                return _bare_value((yield from _read_closing(source)))
            case quote:
                text, _ = yield from read_until(source, quote)
                return text


def _read_closing(source: TextStream) -> Reading[str]:
    text, _ = yield from read_until(source, ",", "}", "]")
    source.at -= 1
    return text.strip()


def _bare_value(text: str) -> object:
    """Return a number or constant; anything else is a string without quotes."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        with suppress(ValueError):
            return finite(text)
    return _CONSTANTS.get(text, text)


FUNCTION_GEMMA = _Gemma("<start_function_call>", "<end_function_call>", "<escape>").format()
GEMMA_4 = _Gemma("<|tool_call>", "<tool_call|>", '<|"|>').format()
