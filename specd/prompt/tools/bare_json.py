"""Calls as JSON without tags that is the whole answer: Llama 3, and models that forget the tags.

Such an answer may also be meant for the user, so a call must name a tool of the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import ARGUMENT_KEYS, ID_KEYS, NAME_KEYS, calls_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect,
    json_text,
    match_literal,
    skip,
    skip_space,
)

_BRACKETS = re.compile(r"[\s\[]*")
_FIRST_KEYS = tuple(f'"{key}"' for key in ("type", *NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS))


@dataclass(frozen=True, slots=True)
class BareJson:
    """One object, a list, or several objects with `;` or `,` between them."""

    openers: tuple[str, ...] = ("{", "[")
    is_only_leading: bool = True
    tokens: tuple[str, ...] = ()

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        calls = yield from _calls(source, tools)
        return calls + (yield from _read_more_calls(source, tools, ";", ","))


@dataclass(frozen=True, slots=True)
class PythonTag:
    """`<|python_tag|>` before Llama's JSON; other code after it is content for the user."""

    openers: tuple[str, ...] = ("<|python_tag|>",)
    is_only_leading: bool = False
    tokens: tuple[str, ...] = ("<|python_tag|>",)

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        yield from expect(source, *self.openers)
        yield from skip_space(source)
        calls = calls_of(decode_json((yield from json_text(source))))
        return calls + (yield from _read_more_calls(source, tools, ";", ",", *self.openers))


def _calls(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    yield from _check_first_key(source, tools)
    calls = calls_of(decode_json((yield from json_text(source))))
    if any(call.name not in tools.names for call in calls):
        raise NotAToolCall
    return calls


def _read_more_calls(source: TextStream, tools: Tools, *between: str) -> Reading[list[ToolCall]]:
    """Read further calls, each with or without one of the separators before it."""
    calls: list[ToolCall] = []
    while True:
        begin = source.at
        try:
            yield from skip_space(source)
            yield from match_literal(source, *between)
            yield from skip_space(source)
            calls += yield from _calls(source, tools)
        except NotAToolCall:
            source.at = begin
            return calls


def _check_first_key(source: TextStream, tools: Tools) -> Reading[None]:
    """Raise NotAToolCall as early as possible, so that other answers in JSON are streamed."""
    begin = source.at
    yield from skip(source, _BRACKETS)
    yield from expect(source, "{")
    yield from skip_space(source)
    key = yield from expect(source, *_FIRST_KEYS)
    yield from skip_space(source)
    yield from expect(source, ":")
    yield from skip_space(source)
    if key == '"name"' and (yield from match_literal(source, '"')):
        yield from skip_space(source)
        yield from expect(source, *_spelled(tools.names))
        yield from skip_space(source)
        yield from expect(source, '"')
    source.at = begin


def _spelled(names: Iterable[str]) -> set[str]:
    """Return the names as they appear in JSON, with and without escapes for non-ASCII letters."""
    return {json.dumps(x, ensure_ascii=escaped)[1:-1] for x in names for escaped in (True, False)}
