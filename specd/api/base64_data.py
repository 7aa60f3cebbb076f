"""Decoder for standard base64 with Go's error text, which names the byte."""

from __future__ import annotations

import base64
import re
from typing import Final

from specd.errors import InvalidRequest

_ALPHABET: Final = re.compile(r"[A-Za-z0-9+/]*")


def decode(text: str) -> bytes:
    """Return the bytes of padded base64; skip line breaks.

    Raises InvalidRequest with Go's "illegal base64 data at input byte N".
    """
    packed = text.replace("\r", "").replace("\n", "")
    match = _ALPHABET.match(packed)
    assert match is not None  # the pattern may be empty
    bad = _first_bad_byte(packed, match.end())
    if bad is not None:
        raise InvalidRequest(f"illegal base64 data at input byte {bad}")
    return base64.b64decode(packed)


def _first_bad_byte(text: str, end: int) -> int | None:
    """Return the index that Go's decoder reports; `end` is where the alphabet ends."""
    in_quantum = end % 4
    if end == len(text):
        return end - in_quantum if in_quantum else None
    if text[end] != "=" or in_quantum < 2:
        return end
    padding = 4 - in_quantum
    if text[end : end + padding] != "=" * padding:
        # Two `=` are needed: Go reports the byte in place of the second.
        return end + 1
    return end + padding if len(text) > end + padding else None
