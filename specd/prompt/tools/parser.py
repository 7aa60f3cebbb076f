"""Streaming parser that separates tool calls from the text around them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from specd.core import Delta, ToolCall
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


class _CallNumbering:
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


class _Content:
    """Collector of the text around calls.

    White space is held back until its successor is known.  Next to a call it is dropped, except
    one run between two pieces of text, which would otherwise run together.
    has_text: there was text other than space.  ends_in_call: a call was the last.
    """

    def __init__(self) -> None:
        self.has_text = False
        self._text = ""
        self._space = ""
        self._space_before_calls = ""
        self.ends_in_call = False

    def say(self, text: str) -> None:
        whole = self._space + text
        stripped = whole.strip()
        if not stripped:
            self._space = whole
            return
        leading = whole[: len(whole) - len(whole.lstrip())]
        self._space = whole[len(leading) + len(stripped) :]
        if self.ends_in_call:
            leading = (self._space_before_calls or leading) if self.has_text else ""
            self.ends_in_call, self._space_before_calls = False, ""
        self._text += leading + stripped
        self.has_text = True

    def mark_call(self) -> None:
        """Record a call at this point."""
        self._space_before_calls = self._space_before_calls or self._space
        self._space = ""
        self.ends_in_call = True

    def end(self) -> None:
        """End the text; trailing space belongs to it, except after a call."""
        if not self.ends_in_call:
            self._text += self._space
        self._space = ""

    def take(self) -> str:
        """Return and clear the text collected since the last call."""
        text, self._text = self._text, ""
        return text


class StreamParser:
    """Base of streaming parsers: feed it text in any pieces, then call `finish` once."""

    def __init__(self, tools: Tools, new_id: Callable[[], str]) -> None:
        self._tools = tools
        self._numbering = _CallNumbering(new_id)
        self._source = TextStream()
        self._calls: list[ToolCall] = []
        self._reading = self._read()

    def feed(self, text: str) -> Delta:
        self._source.push(text)
        return self._resume()

    def finish(self) -> Delta:
        self._source.ended = True
        return self._resume()

    def _resume(self) -> Delta:
        next(self._reading, None)
        calls, self._calls = tuple(self._calls), []
        return replace(self._take_text(), tool_calls=calls)

    def _read(self) -> Reading[None]:
        """Read the answer; put calls into `_calls`."""
        raise NotImplementedError

    def _take_text(self) -> Delta:
        """Return the text since the last time, without calls."""
        raise NotImplementedError


class ToolParser(StreamParser):
    """Streaming parser of calls.

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
        super().__init__(tools, new_id)
        self._formats = tuple(formats)
        self._tags = tuple(x for form in formats if not form.is_only_leading for x in form.openers)
        self._leading_openers = [
            x for form in formats if form.is_only_leading for x in form.openers
        ]
        self._content = _Content()
        self._last_calls: list[ToolCall] = []
        self._failed_work = 0

    def trailing_calls(self, text: str) -> tuple[ToolCall, ...]:
        """Return the calls at the end of a text, for thinking that was never closed."""
        self.feed(text)
        self.finish()
        calls = self._last_calls if self._content.ends_in_call else []
        return tuple(replace(call, index=i) for i, call in enumerate(calls))

    def _take_text(self) -> Delta:
        return Delta(content=self._content.take())

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
        self._failed_work += _FAILED_OPENER_COST
        return []

    def _read_calls_in_format(self, form: ToolFormat) -> Reading[list[ToolCall]]:
        """Read calls with one format, from the current position as if it were the start.

        The format sees at most the maximum length of a call.
        """
        source, window, n_characters = self._source, TextStream(max_work=MAX_WORK), _FIRST_CHUNK
        reading = form.read(window, self._tools)
        while True:
            begin = source.at + len(window.text)
            end = min(source.at + MAX_CALL, begin + n_characters)
            window.push(source.text[begin:end])
            is_all = end >= len(source.text)
            window.ended = len(window.text) == MAX_CALL or (is_all and source.ended)
            n_characters *= 2
            try:
                next(reading)
            except StopIteration as found:
                source.at += window.at
                self._failed_work += max(0, window.work - window.at)
                calls: list[ToolCall] = found.value
                return calls
            except NotAToolCall:
                self._failed_work += window.work
                return []
            if is_all:
                yield

    def _emit_until_opener(self) -> str:
        """Emit text up to a possible opener; return the next opener, or ""."""
        source, text, begin = self._source, self._source.text, self._source.at
        tags, leading_openers = (
            (self._tags, self._leading_openers) if self._failed_work < MAX_FAILED_WORK else ((), [])
        )
        found = any_of(tags).search(text, begin)
        at, opener = (found.start(), found[0]) if found else (len(text), "")
        if not opener and not source.ended:
            rest = text[begin:]
            at -= max((partial_tag_length(rest, tag) for tag in tags), default=0)
        if leading_openers and not self._content.has_text:
            # At the first character, a tag that may be incomplete has priority over that character.
            first = space_end(text, begin)
            if first < at and text[first] in leading_openers:
                at, opener = first, text[first]
        self._content.say(text[begin:at])
        source.at = at
        return opener
