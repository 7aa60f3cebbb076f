"""Conversion of token pieces to text, in whole characters."""

from __future__ import annotations

import codecs


class Detokenizer:
    """A decoder that keeps the bytes of a character split over tokens until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_partial = False

    def feed(self, piece: bytes) -> str:
        """Add the bytes of a token; return the characters that are whole now."""
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
