"""Text that arrives in pieces, and incremental readers of it.

A reader is a generator.  If the text so far is not enough, it yields, and is resumed with more.
The result does not depend on how the text is split.  A reader raises NotAToolCall if the text is
not a call; its caller then resets `at`.

Reading is limited by a count of characters, because a hostile answer with a thousand openers would
have its end read a thousand times.
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
# JSON outside strings, without brackets; and inside strings, without quotes and escapes.
_BETWEEN = re.compile(r"[\s\w+\-.,:]*")
_WITHIN = re.compile(r'[^"\\]*')
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
_STRAY_BRACES = re.compile(r"[\s}]*")


class NotAToolCall(Exception):
    """The text is not a call although it begins like one."""


class TextStream:
    """Buffer of the text so far.

    at: position of the next read.  ended: no more text will come.
    work: characters read, including repeated reads.  max_work: limit of `work`.
    """

    def __init__(self, *, max_work: float = math.inf) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.work = 0
        self._max_work = max_work

    @property
    def exhausted(self) -> bool:
        """Whether all text so far is read."""
        return self.at >= len(self.text)

    def push(self, text: str) -> None:
        # A string with one reference grows in place; `self.text += text` would copy it each time.
        own, self.text = self.text, ""
        own += text
        self.text = own

    def spend(self, n_characters: int) -> None:
        """Count n characters of work.  Raises NotAToolCall above the limit."""
        self.work += n_characters
        if self.work > self._max_work:
            raise NotAToolCall

    def drop_read(self) -> None:
        """Drop the text before `at`."""
        if self.at:
            self.text, self.at = self.text[self.at :], 0


def skip_space(source: TextStream) -> Reading[None]:
    yield from skip(source, _SPACE)


def skip(source: TextStream, pattern: re.Pattern[str]) -> Reading[None]:
    """Read as many characters as match the pattern, possibly none."""
    while True:
        source.at = _end(pattern, source.text, source.at)
        if not source.exhausted or source.ended:
            return
        yield


def match_literal(source: TextStream, *literals: str) -> Reading[str]:
    """Read and return the longest of the literals that comes next, or ""."""
    longest = max(map(len, literals), default=0)
    while True:
        ahead = source.text[source.at : source.at + longest]
        incomplete = [x for x in literals if len(x) > len(ahead) and x.startswith(ahead)]
        if source.ended or not incomplete:
            found = max((x for x in literals if ahead.startswith(x)), key=len, default="")
            source.at += len(found)
            return found
        yield


def expect(source: TextStream, *literals: str) -> Reading[str]:
    """Read one of the literals.  Raises NotAToolCall if none comes next."""
    found = yield from match_literal(source, *literals)
    if not found:
        raise NotAToolCall
    return found


def match_after_space(source: TextStream, *literals: str) -> Reading[str]:
    """Skip space and read one of the literals; if none follows, return "" and read nothing."""
    begin = source.at
    yield from skip_space(source)
    found = yield from match_literal(source, *literals)
    if not found:
        source.at = begin
    return found


def expect_after_space(source: TextStream, *literals: str) -> Reading[str]:
    """Skip space and read one of the literals.  Raises NotAToolCall if none follows."""
    yield from skip_space(source)
    return (yield from expect(source, *literals))


def read_until(source: TextStream, *marks: str) -> Reading[tuple[str, str]]:
    """Read up to and including the first mark; return the text and the mark.

    No mark may be a part of another.  Raises NotAToolCall if none comes.
    """
    begin = search_from = source.at
    longest, pattern = max(map(len, marks)), any_of(marks)
    while True:
        if found := pattern.search(source.text, search_from):
            source.spend(found.end() - begin)
            source.at = found.end()
            return source.text[begin : found.start()], found[0]
        if source.ended:
            source.spend(len(source.text) - begin)
            raise NotAToolCall
        search_from = max(begin, len(source.text) - longest + 1)
        yield


def read_word(source: TextStream) -> Reading[str]:
    """Return the letters, digits and `_.:/-` that come next: a function name.

    Raises NotAToolCall if there are none.
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
    """Read the JSON object or array that begins here, by counting brackets outside strings.

    Raises NotAToolCall as soon as it cannot be one.
    """
    yield from expect(source, "{", "[")
    i, depth, in_string = source.at, 1, False
    begin = i - 1
    while True:
        i = _end(_WITHIN if in_string else _BETWEEN, source.text, i)
        # An escape has two characters, of which the second may be a quote.
        if i + (source.text[i : i + 1] == "\\") >= len(source.text):
            if source.ended:
                source.spend(len(source.text) - begin)
                raise NotAToolCall
            yield
            continue
        character = source.text[i]
        i += 1 + (character == "\\")
        if character == '"':
            in_string = not in_string
        elif not in_string:
            step = _STEPS.get(character)
            if step is None:
                source.spend(i - begin)
                raise NotAToolCall
            depth += step
        if depth == 0 and not in_string:
            break
    source.spend(i - begin)
    source.at = i
    return source.text[begin:i]


def starts_json(source: TextStream) -> Reading[bool]:
    """Return whether an object or list begins here."""
    begin = source.at
    found = yield from match_literal(source, "{", "[")
    source.at = begin
    return bool(found)


def skip_closing_tag(source: TextStream, *tags: str) -> Reading[None]:
    """Read one of the closing tags, and surplus braces before it; else read nothing."""
    begin = source.at
    yield from skip(source, _STRAY_BRACES)
    if not (yield from match_literal(source, *tags)):
        source.at = begin


def partial_tag_length(text: str, tag: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


@lru_cache(maxsize=256)
def any_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the first of the texts."""
    return re.compile("|".join(map(re.escape, sorted(literals))) or r"(?!)")


def space_end(text: str, at: int) -> int:
    """Return the end of the white space that begins at `at`."""
    return _end(_SPACE, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None  # each of them matches nothing, too
    return match.end()
