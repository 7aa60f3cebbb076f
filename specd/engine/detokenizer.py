"""Token pieces → text, whole characters only; each piece is decoded once."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Holds the bytes of a character that is split over tokens until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The replacement character for a torso of a character, or nothing."""
        return self._decoder.decode(b"", final=True)
