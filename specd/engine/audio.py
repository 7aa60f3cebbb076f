"""Checks of untrusted sound files, before llama.cpp reads them.

llama.cpp's reader takes lengths and rates from the headers and allocates that much memory at once.
"""

from __future__ import annotations

import struct

from specd.errors import InvalidRequest

_MAX_BYTES = 25 * 2**20
_MAX_SECONDS = 3600
#: Fewest samples per second; with fewer, a small file becomes a long sound.
_MIN_RATE = 4000


def check_audio(data: bytes) -> bytes:
    """Return the file, with the true length in its header if a stream left that open.

    Raises InvalidRequest.
    """
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(f"a sound of {len(data)} bytes is too large: at most {_MAX_BYTES}")
    if data.startswith(b"RIFF"):
        return _wav(data)
    if (begin := _tag_bytes(data)) and data[begin:].startswith(b"RIFF"):
        raise _unreadable()
    if data[begin:].startswith(b"fLaC"):
        _check_flac(data[begin:])
    return data


def _wav(data: bytes) -> bytes:
    at, rate = 12, 0
    while at + 8 <= len(data):
        name, n_bytes = struct.unpack_from("<4sI", data, at)
        n_there = len(data) - at - 8
        if name == b"fmt " and n_there >= 16:
            channels, rate, _, n_frame = struct.unpack_from("<HIIH", data, at + 10)
            if not channels or not n_frame or rate < _MIN_RATE:
                raise _unreadable()
        if name == b"data":
            if not rate:
                raise _unreadable()
            return data[: at + 4] + struct.pack("<I", min(n_bytes, n_there)) + data[at + 8 :]
        at += 8 + n_bytes + n_bytes % 2
    raise _unreadable()


def _check_flac(data: bytes) -> None:
    # STREAMINFO, from byte 18 on: 20 bits of rate, 3 of channels, 5 of width, 36 of length.
    if len(data) < 26:
        raise _unreadable()
    facts = int.from_bytes(data[18:26])
    rate, n_samples = facts >> 44, facts & (1 << 36) - 1
    if rate < _MIN_RATE or n_samples > rate * _MAX_SECONDS:
        raise _unreadable()


def _tag_bytes(data: bytes) -> int:
    """Return the length of an ID3 tag at the start, header included: four times seven bits."""
    if not data.startswith(b"ID3") or len(data) < 10:
        return 0
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size


def _unreadable() -> InvalidRequest:
    return InvalidRequest("a sound cannot be read: it is not WAV, MP3 or FLAC of at most an hour")
