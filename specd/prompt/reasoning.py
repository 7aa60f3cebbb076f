"""Streaming parser that separates a model's thinking from its answer."""

from __future__ import annotations

from enum import Enum, auto

from specd.core import THINKING_TAGS, Delta
from specd.prompt.tools.text_stream import partial_tag_length

OPEN_TAG, CLOSE_TAG = THINKING_TAGS[0]


class _State(Enum):
    BEFORE = auto()  # only white space so far: an open tag may follow
    OPENED = auto()  # skip white space after the open tag
    THINKING = auto()
    CLOSED = auto()  # skip white space after the close tag
    ANSWER = auto()


class ReasoningParser:
    """Parser of thinking: feed it raw text in any pieces, then call `finish` once.

    An open tag counts only at the start.  White space before it and after either tag is dropped,
    as in Ollama's parser.
    starts_thinking: the prompt has opened the tag; the model may repeat it.
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
        self._starts_thinking = starts_thinking
        self._state = _State.BEFORE
        self._held = ""

    @classmethod
    def after(
        cls, prompt: str, *, open_tag: str = OPEN_TAG, close_tag: str = CLOSE_TAG
    ) -> ReasoningParser:
        """Return the parser for the text after a rendered prompt."""
        starts_thinking = is_open(prompt, open_tag)
        return cls(open_tag=open_tag, close_tag=close_tag, starts_thinking=starts_thinking)

    @property
    def is_unclosed(self) -> bool:
        """Whether the thinking was opened and not closed yet."""
        return self._state in {_State.OPENED, _State.THINKING}

    def feed(self, text: str) -> Delta:
        """Return what can be parsed by now; hold back text that may be part of a tag."""
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
        """Return the text that was held back."""
        rest, self._held = self._held, ""
        if self._state is not _State.BEFORE:
            return Delta(thinking=rest)
        if not self._starts_thinking:
            return Delta(content=rest)
        self._state = _State.THINKING
        return Delta(thinking=rest.lstrip())

    def _find_open_tag(self) -> None:
        start = self._held.lstrip()
        if start.startswith(self._open_tag):
            self._held = start[len(self._open_tag) :]
            self._state = _State.OPENED
        elif not self._open_tag.startswith(start):
            self._state = _State.OPENED if self._starts_thinking else _State.ANSWER

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
    """Return whether a rendered prompt ends with the open tag."""
    return prompt.rstrip().endswith(open_tag)
