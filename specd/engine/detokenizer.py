"""Token pieces → text, whole characters only; each piece is decoded once."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Holds the bytes of a character that is split over tokens until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_partial = False

    def feed(self, piece: bytes) -> str:
        if not self._has_partial:
            try:
                return piece.decode()
            except UnicodeDecodeError:
                pass  # a part of a character, or bytes that are none
        text = self._decoder.decode(piece)
        self._has_partial = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The replacement character for a torso of a character, or nothing."""
        return self._decoder.decode(b"", final=True)
