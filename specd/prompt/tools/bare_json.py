"""JSON that is the whole answer, without tags: Llama 3, and whoever forgets the tags.

Such an answer may as well be meant for the user, so a call must name a tool of the request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import ARGUMENT_KEYS, ID_KEYS, NAME_KEYS, calls_of, decoded
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.source import (
    NotACall,
    Reading,
    Source,
    comes,
    expect,
    json_text,
    skip_space,
)

_FIRST_KEYS = frozenset({"type", *NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS})
_KEY = re.compile(r'[\s\[]*\{\s*"([^"\\]*)"\s*:\s*')
_BEFORE_KEY = re.compile(r'[\s\[]*(?:\{\s*(?:"[^"\\]*(?:"\s*)?)?)?\Z')
_VALUE = re.compile(r'"([^"\\]*)"')
_BEFORE_VALUE = re.compile(r'(?:"[^"\\]*)?\Z')


@dataclass(frozen=True, slots=True)
class BareJson:
    """One object, a list, or several one after another with `;` or `,` between them."""

    openers: tuple[str, ...] = ("{", "[")
    leading: bool = True
    tokens: tuple[str, ...] = ()

    def read(self, source: Source, tools: Tools) -> Reading[list[ToolCall]]:
        calls = yield from _calls(source, tools)
        return calls + (yield from _further(source, tools, ";", ","))


@dataclass(frozen=True, slots=True)
class PythonTag:
    """`<|python_tag|>` before Llama's JSON; other code behind it is for the user to run."""

    openers: tuple[str, ...] = ("<|python_tag|>",)
    leading: bool = False
    tokens: tuple[str, ...] = ("<|python_tag|>",)

    def read(self, source: Source, tools: Tools) -> Reading[list[ToolCall]]:
        yield from expect(source, *self.openers)
        yield from skip_space(source)
        calls = calls_of(decoded((yield from json_text(source))))
        return calls + (yield from _further(source, tools, ";", ",", *self.openers))


def _calls(source: Source, tools: Tools) -> Reading[list[ToolCall]]:
    yield from _promise(source, tools)
    calls = calls_of(decoded((yield from json_text(source))))
    if any(call.name not in tools.names for call in calls):
        raise NotACall
    return calls


def _further(source: Source, tools: Tools, *between: str) -> Reading[list[ToolCall]]:
    """Calls that follow, with or without one of the texts before each."""
    calls: list[ToolCall] = []
    while True:
        begin = source.at
        try:
            yield from skip_space(source)
            yield from comes(source, *between)
            yield from skip_space(source)
            calls += yield from _calls(source, tools)
        except NotACall:
            source.at = begin
            return calls


def _promise(source: Source, tools: Tools) -> Reading[None]:
    """NotACall as soon as the beginning is no call's: an answer in JSON shall stream."""
    while not source.ended:
        ahead = source.text[source.at :]
        if (key := _KEY.match(ahead)) is None:
            if not _BEFORE_KEY.match(ahead):
                raise NotACall
        elif key[1] not in _FIRST_KEYS:
            raise NotACall
        elif key[1] != "name":
            return
        elif (name := _VALUE.match(ahead, key.end())) is not None:
            if name[1].strip() not in tools.names:
                raise NotACall
            return
        elif not _BEFORE_VALUE.match(ahead, key.end()):
            return
        yield
