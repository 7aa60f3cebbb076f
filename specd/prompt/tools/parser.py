"""Parts calls from the text around them while the answer streams in."""

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

#: No call is longer, in signs.
MAX_CALL: Final = 1 << 18
#: What reading one may take: its text, and as much again for what is tried in vain.
MAX_WORK: Final = 2 * MAX_CALL
#: Work without fruit, in signs, until an answer has no more calls.
MAX_FAILED_WORK: Final = 1 << 18
#: The least that an opener costs which opens nothing.
_FAILED_OPENER_COST: Final = 64
#: So much of the text at once: few calls are long, and few texts that are none.
_FIRST_CHUNK: Final = 1024

_ID_CHARACTERS = string.ascii_lowercase + string.digits


def random_call_id() -> str:
    """As Ollama's: `call_` and eight signs."""
    return "call_" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(8))


class CallNumbering:
    """Gives calls their places and ids; an id that the model wrote itself is kept."""

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
    """Feed it pieces of an answer in order, then `finish` once; any split parses the same.

    What was begun like a call and is none stays content; so does what is longer than any call, and
    all of an answer that has begun too many in vain.
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
        """The calls in which a text ends, if it does; instead of an answer."""
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
        """By the first format that can read it; none where nobody can."""
        for form in self._formats:
            if opener in form.openers and (calls := (yield from self._read_calls_in_format(form))):
                return calls
        self._waste += _FAILED_OPENER_COST
        return []

    def _read_calls_in_format(self, form: ToolFormat) -> Reading[list[ToolCall]]:
        """What it makes of what comes next, which it is shown as if nothing stood before.

        What is longer than any call ends for it there, wherever it was cut.
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
        """Say what is no opener, leave what may become one; the opener that comes next, or ""."""
        source, text, begin = self._source, self._source.text, self._source.at
        tags, signs = (self._tags, self._signs) if self._waste < MAX_FAILED_WORK else ((), [])
        found = any_of(tags).search(text, begin)
        at, opener = (found.start(), found[0]) if found else (len(text), "")
        if not opener and not source.ended:
            rest = text[begin:]
            at -= max((partial_tag_length(rest, tag) for tag in tags), default=0)
        if signs and not self._content.begun:
            # At the first sign a tag that is about to come goes before the sign itself.
            first = space_end(text, begin)
            if first < at and text[first] in signs:
                at, opener = first, text[first]
        self._content.say(text[begin:at])
        source.at = at
        return opener
