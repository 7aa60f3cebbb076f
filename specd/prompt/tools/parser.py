"""Streaming parser that separates tool calls from the text around them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from specd.core import Delta, ToolCall
from specd.prompt.tools.content import Content
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    any_of,
    partial_tag_length,
    space_end,
)
from specd.prompt.tools.tool_format import ToolFormat

#: Maximum length of a call, characters.
MAX_CALL: Final = 1 << 18
#: Maximum work for one call, characters: its text, and as much again for failed attempts.
MAX_WORK: Final = 2 * MAX_CALL
#: Failed work, characters, after which the rest of an answer is content.
MAX_FAILED_WORK: Final = 1 << 18
#: Minimum cost of an opener without a call.
_FAILED_OPENER_COST: Final = 64
#: Characters to read at first: most calls, and most texts that are not calls, are short.
_FIRST_CHUNK: Final = 1024

_ID_CHARACTERS = string.ascii_lowercase + string.digits


def random_call_id() -> str:
    """Return an id like Ollama's: `call_` and eight characters."""
    return "call_" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(8))


class CallNumbering:
    """Assigns indexes and ids to calls; keeps an id that the model wrote."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._taken: set[str] = set()
        self._n_calls = 0

    def numbered(self, call: ToolCall) -> ToolCall:
        call_id = call.id if call.id and call.id not in self._taken else self._new_id()
        self._taken.add(call_id)
        self._n_calls += 1
        return replace(call, id=call_id, index=self._n_calls - 1)


class ToolParser:
    """Streaming parser of calls: feed it text in any pieces, then call `finish` once.

    Text that only begins like a call stays content.  So does a call above the maximum length, and
    the rest of an answer with too many failed attempts.
    """

    def __init__(
        self,
        formats: Sequence[ToolFormat],
        tools: Tools,
        *,
        new_id: Callable[[], str] = random_call_id,
    ) -> None:
        self._formats = tuple(formats)
        self._tags = tuple(x for form in formats if not form.is_only_leading for x in form.openers)
        self._signs = [x for form in formats if form.is_only_leading for x in form.openers]
        self._tools = tools
        self._numbering = CallNumbering(new_id)
        self._source = TextStream()
        self._content = Content()
        self._calls: list[ToolCall] = []
        self._last_calls: list[ToolCall] = []
        self._waste = 0
        self._reading = self._read()

    def feed(self, text: str) -> Delta:
        self._source.push(text)
        return self._resume()

    def finish(self) -> Delta:
        self._source.ended = True
        return self._resume()

    def trailing_calls(self, text: str) -> tuple[ToolCall, ...]:
        """Return the calls at the end of a text, for thinking that was never closed."""
        self.feed(text)
        self.finish()
        calls = self._last_calls if self._content.ends_in_call else []
        return tuple(replace(call, index=i) for i, call in enumerate(calls))

    def _resume(self) -> Delta:
        next(self._reading, None)
        calls, self._calls = tuple(self._calls), []
        return Delta(content=self._content.take(), tool_calls=calls)

    def _read(self) -> Reading[None]:
        source = self._source
        while True:
            opener = self._emit_until_opener()
            if opener:
                yield from self._open(opener)
            elif source.ended:
                break
            else:
                source.drop_read()
                yield
        self._content.end()

    def _open(self, opener: str) -> Reading[None]:
        calls = yield from self._read_calls(opener)
        if calls:
            numbered = [self._numbering.numbered(call) for call in calls]
            self._last_calls = (self._last_calls if self._content.ends_in_call else []) + numbered
            self._calls += numbered
            self._content.mark_call()
        else:
            self._content.say(opener)
            self._source.at += len(opener)

    def _read_calls(self, opener: str) -> Reading[list[ToolCall]]:
        """Read calls with the first format that succeeds; return none if no format does."""
        for form in self._formats:
            if opener in form.openers and (calls := (yield from self._read_calls_in_format(form))):
                return calls
        self._waste += _FAILED_OPENER_COST
        return []

    def _read_calls_in_format(self, form: ToolFormat) -> Reading[list[ToolCall]]:
        """Read calls with one format, from the current position as if it were the start.

        The format sees at most the maximum length of a call.
        """
        source, shown, bite = self._source, TextStream(max_work=MAX_WORK), _FIRST_CHUNK
        reading = form.read(shown, self._tools)
        while True:
            begin = source.at + len(shown.text)
            end = min(source.at + MAX_CALL, begin + bite)
            shown.push(source.text[begin:end])
            is_all = end >= len(source.text)
            shown.ended = len(shown.text) == MAX_CALL or (is_all and source.ended)
            bite *= 2
            try:
                next(reading)
            except StopIteration as found:
                source.at += shown.at
                self._waste += max(0, shown.work - shown.at)
                calls: list[ToolCall] = found.value
                return calls
            except NotAToolCall:
                self._waste += shown.work
                return []
            if is_all:
                yield

    def _emit_until_opener(self) -> str:
        """Emit text up to a possible opener; return the next opener, or ""."""
        source, text, begin = self._source, self._source.text, self._source.at
        tags, signs = (self._tags, self._signs) if self._waste < MAX_FAILED_WORK else ((), [])
        found = any_of(tags).search(text, begin)
        at, opener = (found.start(), found[0]) if found else (len(text), "")
        if not opener and not source.ended:
            rest = text[begin:]
            at -= max((partial_tag_length(rest, tag) for tag in tags), default=0)
        if signs and not self._content.begun:
            # At the first character, a tag that may be incomplete has priority over that character.
            first = space_end(text, begin)
            if first < at and text[first] in signs:
                at, opener = first, text[first]
        self._content.say(text[begin:at])
        source.at = at
        return opener
