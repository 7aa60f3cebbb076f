"""Parts a model's thinking from its answer while the text streams in."""

from __future__ import annotations

from enum import Enum, auto

from specd.core import THINKING_TAGS, Delta
from specd.prompt.tools.text_stream import partial_tag_length

OPEN_TAG, CLOSE_TAG = THINKING_TAGS[0]


class _State(Enum):
    BEFORE = auto()  # nothing but white space so far: an open tag may still come
    OPENED = auto()  # white space after the open tag is dropped
    THINKING = auto()
    CLOSED = auto()  # white space after the close tag is dropped
    ANSWER = auto()


class ReasoningParser:
    """Feed it pieces of raw text in order, then `finish` once; any split parses the same.

    An open tag counts only at the very start, and the white space before it and after either tag
    is dropped (as Ollama's parser does).  `starts_inside`: the prompt already opened the tag; a
    model that opens it once more has said nothing with that.
    """

    def __init__(
        self,
        *,
        open_tag: str = OPEN_TAG,
        close_tag: str = CLOSE_TAG,
        starts_thinking: bool = False,
    ) -> None:
        self._open_tag = open_tag
        self._close_tag = close_tag
        self._starts_inside = starts_thinking
        self._state = _State.BEFORE
        self._held = ""

    @classmethod
    def after(
        cls, prompt: str, *, open_tag: str = OPEN_TAG, close_tag: str = CLOSE_TAG
    ) -> ReasoningParser:
        """The parser for what follows a rendered prompt."""
        inside = is_open(prompt, open_tag)
        return cls(open_tag=open_tag, close_tag=close_tag, starts_thinking=inside)

    @property
    def is_unclosed(self) -> bool:
        """Whether all text so far is thinking."""
        return self._state in {_State.OPENED, _State.THINKING}

    def feed(self, text: str) -> Delta:
        """What can be told apart by now; text that may be part of a tag is held back."""
        self._held += text
        thinking = ""
        if self._state is _State.BEFORE:
            self._find_open_tag()
        if self._state is _State.OPENED:
            self._skip_space(_State.THINKING)
        if self._state is _State.THINKING:
            thinking = self._take_thinking()
        if self._state is _State.CLOSED:
            self._skip_space(_State.ANSWER)
        if self._state is not _State.ANSWER:
            return Delta(thinking=thinking)
        content, self._held = self._held, ""
        return Delta(content=content, thinking=thinking)

    def finish(self) -> Delta:
        """What was held back, now that no tag can complete it."""
        rest, self._held = self._held, ""
        if self._state is not _State.BEFORE:
            return Delta(thinking=rest)
        if not self._starts_inside:
            return Delta(content=rest)
        self._state = _State.THINKING
        return Delta(thinking=rest.lstrip())

    def _find_open_tag(self) -> None:
        start = self._held.lstrip()
        if start.startswith(self._open_tag):
            self._held = start[len(self._open_tag) :]
            self._state = _State.OPENED
        elif not self._open_tag.startswith(start):
            self._state = _State.OPENED if self._starts_inside else _State.ANSWER

    def _skip_space(self, then: _State) -> None:
        self._held = self._held.lstrip()
        if self._held:
            self._state = then

    def _take_thinking(self) -> str:
        thinking, tag, rest = self._held.partition(self._close_tag)
        if tag:
            self._held = rest
            self._state = _State.CLOSED
            return thinking
        safe = len(self._held) - partial_tag_length(self._held, self._close_tag)
        thinking, self._held = self._held[:safe], self._held[safe:]
        return thinking


def is_open(prompt: str, open_tag: str) -> bool:
    """Whether a rendered prompt ends within thinking, at its very beginning."""
    return prompt.rstrip().endswith(open_tag)
