"""Parts calls from the text around them while the answer streams in."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import replace

from specd.core import Delta, ToolCall
from specd.prompt.tools.content import Content
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.source import NotACall, Reading, Source, overlap
from specd.prompt.tools.tool_format import ToolFormat

_ID_SIGNS = string.ascii_lowercase + string.digits


def random_call_id() -> str:
    """As Ollama's: `call_` and eight signs."""
    return "call_" + "".join(secrets.choice(_ID_SIGNS) for _ in range(8))


class Numbering:
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

    What was begun like a call and is none stays content.
    """

    def __init__(
        self,
        formats: Sequence[ToolFormat],
        tools: Tools,
        *,
        new_id: Callable[[], str] = random_call_id,
    ) -> None:
        self._formats = tuple(formats)
        self._tags = [x for form in formats if not form.leading for x in form.openers]
        self._signs = [x for form in formats if form.leading for x in form.openers]
        self._tools = tools
        self._numbering = Numbering(new_id)
        self._source = Source()
        self._content = Content()
        self._calls: list[ToolCall] = []
        self._last_calls: list[ToolCall] = []
        self._reading = self._read()

    def feed(self, text: str) -> Delta:
        self._source.push(text)
        return self._go_on()

    def finish(self) -> Delta:
        self._source.ended = True
        return self._go_on()

    def last_words(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in which a text ends, if it does; instead of an answer."""
        self.feed(text)
        self.finish()
        calls = self._last_calls if self._content.ends_in_call else []
        return tuple(replace(call, index=i) for i, call in enumerate(calls))

    def _go_on(self) -> Delta:
        next(self._reading, None)
        calls, self._calls = tuple(self._calls), []
        return Delta(content=self._content.take(), tool_calls=calls)

    def _read(self) -> Reading[None]:
        source = self._source
        while True:
            opener = self._say_until_opener()
            source.drop_read()
            if opener:
                yield from self._open(opener)
            elif source.ended:
                break
            else:
                yield
        self._content.end()

    def _open(self, opener: str) -> Reading[None]:
        calls = yield from self._called(opener)
        if calls:
            numbered = [self._numbering.numbered(call) for call in calls]
            self._last_calls = (self._last_calls if self._content.ends_in_call else []) + numbered
            self._calls += numbered
            self._content.interrupt()
        else:
            self._content.say(opener)
            self._source.at = len(opener)

    def _called(self, opener: str) -> Reading[list[ToolCall]]:
        """By the first format that can read it; none where nobody can."""
        for form in self._formats:
            if opener in form.openers:
                try:
                    return (yield from form.read(self._source, self._tools))
                except NotACall:
                    self._source.at = 0
        return []

    def _say_until_opener(self) -> str:
        """Say what is no opener, leave what may become one; the opener that comes next, or ""."""
        source = self._source
        text = source.text[source.at :]
        found = [(at, tag) for tag in self._tags if (at := text.find(tag)) >= 0]
        at, opener = min(found, default=(len(text), ""))
        if not opener and not source.ended:
            at -= max((overlap(text, tag) for tag in self._tags), default=0)
        first = len(text) - len(text.lstrip())
        # At the first sign a tag that is about to come goes before the sign itself.
        if first < at and not self._content.begun and text[first] in self._signs:
            at, opener = first, text[first]
        self._content.say(text[:at])
        source.at += at
        return opener
