"""Text that arrives in pieces, and what can be read from it piece by piece.

A reader is a generator: where the text so far does not decide, it yields and is resumed when there
is more.  Nothing but the text decides, so any split of it reads the same.  Whoever finds that the
text is no call raises NotAToolCall; whoever called it puts `at` back.

A hostile answer would have its end read again from each of a thousand openers, so reading is work
that is counted, in signs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.:/\-]*")
# What JSON has outside of its strings, brackets excepted, and inside, quote and escape excepted.
_BETWEEN = re.compile(r"[\s\w+\-.,:]*")
_WITHIN = re.compile(r'[^"\\]*')
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
_STRAY = re.compile(r"[\s}]*")


class NotAToolCall(Exception):
    """What looked like the beginning of a call is none."""


class TextStream:
    """at: where reading goes on.  ended: no more text will come.

    work: the signs that readers went through, some of them more than once; max_work: its bound.
    """

    def __init__(self, *, max_work: float = math.inf) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.work = 0
        self._max_work = max_work

    @property
    def exhausted(self) -> bool:
        """Whether all text is read, for now."""
        return self.at >= len(self.text)

    def push(self, text: str) -> None:
        # A text that nobody else holds grows in place; `self.text += text` would copy it each time.
        own, self.text = self.text, ""
        own += text
        self.text = own

    def spend(self, n_signs: int) -> None:
        """Before work on so many signs; NotAToolCall where it is more than a call is worth."""
        self.work += n_signs
        if self.work > self._max_work:
            raise NotAToolCall

    def drop_read(self) -> None:
        """Forget what lies before `at`."""
        if self.at:
            self.text, self.at = self.text[self.at :], 0


def skip_space(source: TextStream) -> Reading[None]:
    yield from skip(source, _SPACE)


def skip(source: TextStream, pattern: re.Pattern[str]) -> Reading[None]:
    """As many signs of a kind as come; the pattern matches nothing, too."""
    while True:
        source.at = _end(pattern, source.text, source.at)
        if not source.exhausted or source.ended:
            return
        yield


def match_literal(source: TextStream, *literals: str) -> Reading[str]:
    """Which of the literals comes next, the longest of them, or ""; what comes is read."""
    longest = max(map(len, literals), default=0)
    while True:
        ahead = source.text[source.at : source.at + longest]
        open_ones = [x for x in literals if len(x) > len(ahead) and x.startswith(ahead)]
        if source.ended or not open_ones:
            found = max((x for x in literals if ahead.startswith(x)), key=len, default="")
            source.at += len(found)
            return found
        yield


def expect(source: TextStream, *literals: str) -> Reading[str]:
    """As `comes`, but NotAToolCall where none comes."""
    found = yield from match_literal(source, *literals)
    if not found:
        raise NotAToolCall
    return found


def read_until(source: TextStream, *marks: str) -> Reading[tuple[str, str]]:
    """The text before the first mark, and that mark; both are read.  NotAToolCall where none comes.

    No mark is part of another.
    """
    begin = look = source.at
    longest, pattern = max(map(len, marks)), any_of(marks)
    while True:
        if found := pattern.search(source.text, look):
            source.spend(found.end() - begin)
            source.at = found.end()
            return source.text[begin : found.start()], found[0]
        if source.ended:
            source.spend(len(source.text) - begin)
            raise NotAToolCall
        look = max(begin, len(source.text) - longest + 1)
        yield


def read_word(source: TextStream) -> Reading[str]:
    """Return the letters, digits and `_.:/-` that come next: a function name.

    Raises NotAToolCall where there are none.
    """
    begin = source.at
    end = begin
    while True:
        end = _end(_WORD, source.text, end)
        if end < len(source.text) or source.ended:
            break
        yield
    if end == begin:
        raise NotAToolCall
    source.at = end
    return source.text[begin:end]


def json_text(source: TextStream) -> Reading[str]:
    """The JSON object or array that begins here, to its closing bracket.

    NotAToolCall as soon as there is none: brackets are counted, strings and their escapes known.
    """
    yield from expect(source, "{", "[")
    i, depth, within = source.at, 1, False
    begin = i - 1
    while True:
        i = _end(_WITHIN if within else _BETWEEN, source.text, i)
        # An escape is two signs, of which the second may be a quote.
        if i + (source.text[i : i + 1] == "\\") >= len(source.text):
            if source.ended:
                source.spend(len(source.text) - begin)
                raise NotAToolCall
            yield
            continue
        sign = source.text[i]
        i += 1 + (sign == "\\")
        if sign == '"':
            within = not within
        elif not within:
            step = _STEPS.get(sign)
            if step is None:
                source.spend(i - begin)
                raise NotAToolCall
            depth += step
        if depth == 0 and not within:
            break
    source.spend(i - begin)
    source.at = i
    return source.text[begin:i]


def starts_json(source: TextStream) -> Reading[bool]:
    """Whether an object or list begins here."""
    begin = source.at
    found = yield from match_literal(source, "{", "[")
    source.at = begin
    return bool(found)


def skip_closing_tag(source: TextStream, *tags: str) -> Reading[None]:
    """Read one of the closing tags, and braces too many before it; where none comes, nothing."""
    begin = source.at
    yield from skip(source, _STRAY)
    if not (yield from match_literal(source, *tags)):
        source.at = begin


def partial_tag_length(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`, and is not all of it."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


@lru_cache(maxsize=256)
def any_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    """What finds the first of them, in one go."""
    return re.compile("|".join(map(re.escape, sorted(literals))) or r"(?!)")


def space_end(text: str, at: int) -> int:
    """Where the space that begins at `at` ends."""
    return _end(_SPACE, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None  # each of them matches nothing, too
    return match.end()
