"""Tell sound files from images by their first bytes."""

from __future__ import annotations


def is_audio(data: bytes) -> bool:
    """Return whether the file is WAV, FLAC, or MP3 by its tag or first frame."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WAVE"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0
    return data.startswith((b"ID3", b"fLaC")) or is_frame
