"""Calls as JSON without tags that is the whole answer: Llama 3, and models that forget the tags.

Such an answer may also be meant for the user, so a call must name a tool of the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from specd.core import ToolCall
from specd.prompt.tools.call import ARGUMENT_KEYS, ID_KEYS, NAME_KEYS, calls_of, read_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect,
    expect_after_space,
    match_after_space,
    skip,
    skip_space,
)
from specd.prompt.tools.tool_format import ToolFormat

_PYTHON_TAG = "<|python_tag|>"
_BRACKETS = re.compile(r"[\s\[]*")
_FIRST_KEYS = tuple(f'"{key}"' for key in ("type", *NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS))


def _read_bare(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    """Read one object, a list, or several objects with `;` or `,` between them."""
    calls = yield from _calls(source, tools)
    return calls + (yield from _read_more_calls(source, tools, ";", ","))


def _read_tagged(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    """Read Llama's JSON after its tag; other code after the tag is content for the user."""
    yield from expect(source, _PYTHON_TAG)
    yield from skip_space(source)
    calls = calls_of((yield from read_json(source)))
    return calls + (yield from _read_more_calls(source, tools, ";", ",", _PYTHON_TAG))


def _calls(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    yield from _check_first_key(source, tools)
    calls = calls_of((yield from read_json(source)))
    if any(call.name not in tools.names for call in calls):
        raise NotAToolCall
    return calls


def _read_more_calls(source: TextStream, tools: Tools, *between: str) -> Reading[list[ToolCall]]:
    """Read further calls, each with or without one of the separators before it."""
    calls: list[ToolCall] = []
    while True:
        begin = source.at
        try:
            yield from match_after_space(source, *between)
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
    key = yield from expect_after_space(source, *_FIRST_KEYS)
    yield from expect_after_space(source, ":")
    if key == '"name"' and (yield from match_after_space(source, '"')):
        yield from expect_after_space(source, *_spelled(tools.names))
        yield from expect_after_space(source, '"')
    source.at = begin


def _spelled(names: Iterable[str]) -> set[str]:
    """Return the names as they appear in JSON, with and without escapes for non-ASCII letters."""
    return {json.dumps(x, ensure_ascii=escaped)[1:-1] for x in names for escaped in (True, False)}


BARE_JSON = ToolFormat(("{", "["), _read_bare, is_only_leading=True)
PYTHON_TAG = ToolFormat((_PYTHON_TAG,), _read_tagged, tokens=(_PYTHON_TAG,))
