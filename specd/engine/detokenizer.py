"""Text ⇄ tokens of an answer: whole characters, stop strings, and visible control tokens.

A control token has no bytes in a text (`Vocabulary.piece`); `Vocabulary.spelling` returns its text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

from specd.core import TokenId
from specd.engine.backend import Vocabulary


class Detokenizer:
    """A decoder that keeps the bytes of a character split over tokens until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_partial = False

    def feed(self, piece: bytes) -> str:
        """Return the characters that the bytes of one more token complete."""
        if not self._has_partial:
            try:
                return piece.decode()
            except UnicodeDecodeError:
                pass  # a part of a character, or invalid bytes
        text = self._decoder.decode(piece)
        self._has_partial = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Return the replacement character if a character is incomplete, else ""."""
        return self._decoder.decode(b"", final=True)


class StopFilter:
    """A filter that holds back the longest suffix that could still become a stop string.

    After a stop string, `stopped` is True and no more text is returned.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._undecided = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Add text; return what is safe to show now.  It ends before a stop string."""
        if self.stopped:
            return ""
        undecided = self._undecided + text
        if not self._stop:
            return undecided
        at = min((i for s in self._stop if (i := undecided.find(s)) >= 0), default=-1)
        if at >= 0:
            self._undecided, self.stopped = "", True
            return undecided[:at]
        n = self._n_undecided(undecided)
        self._undecided = undecided[len(undecided) - n :]
        return undecided[: len(undecided) - n]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        undecided, self._undecided = self._undecided, ""
        return undecided

    def _n_undecided(self, text: str) -> int:
        longest = max(map(len, self._stop)) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[len(text) - n :]) for s in self._stop):
                return n
        return 0


def split_at_control_tokens(text: str, vocabulary: Vocabulary) -> list[str | TokenId]:
    """Return the text cut into the control tokens that it spells and the text between them."""
    found: list[str | TokenId] = []
    for token in _control_tokens_in(text, vocabulary):
        before, spelled, after = text.partition(_spelling(token, vocabulary))
        if spelled:
            found += [before, token]
            text = after
    return [part for part in [*found, text] if part != ""]


def visible_bytes(texts: Iterable[str], vocabulary: Vocabulary) -> Callable[[TokenId], bytes]:
    """Return a function from a token to its bytes in an answer.

    The control tokens that occur in `texts` are spelled out; all others have no bytes.
    """
    spellings = {
        token: _spelling(token, vocabulary).encode()
        for text in texts
        for token in _control_tokens_in(text, vocabulary)
    }
    if not spellings:
        return vocabulary.piece
    return lambda token: spellings.get(token) or vocabulary.piece(token)


def _control_tokens_in(text: str, vocabulary: Vocabulary) -> list[TokenId]:
    tokens = vocabulary.tokenize(text, add_bos=False) if text else []
    return [token for token in tokens if not vocabulary.piece(token)]


def _spelling(token: TokenId, vocabulary: Vocabulary) -> str:
    return vocabulary.spelling(token).decode("utf-8", "replace")
