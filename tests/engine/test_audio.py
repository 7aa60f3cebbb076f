"""Headers of sound files are checked against the content."""

from __future__ import annotations

import contextlib
import io
import struct
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.engine.audio import check_audio
from specd.errors import InvalidRequest
from tests.gguf_projectors import sound


def flac(rate: int, n_samples: int) -> bytes:
    facts = rate << 44 | 15 << 36 | n_samples
    return b"fLaC" + bytes(14) + facts.to_bytes(8) + bytes(16)


def test_valid_audio_is_returned_unchanged() -> None:
    for data in (sound(), flac(44_100, 44_100 * 3600), b"ID3\3" + bytes(20), b"\xff\xfb\x90\0"):
        assert check_audio(data) == data


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x7FFFFFFF, 33_000])
def test_a_wav_of_open_length_gets_its_true_length(claimed: int) -> None:
    data = sound()
    at = data.index(b"data")
    with wave.open(
        io.BytesIO(check_audio(data[: at + 4] + struct.pack("<I", claimed) + data[at + 8 :]))
    ) as read:
        assert read.getnframes() == 16_000


@pytest.mark.parametrize(
    "data",
    [
        flac(1, 10),
        flac(44_100, 1 << 35),
        flac(44_100, 1)[:20],
        b"ID3\3\0\0\0\0\0\0" + flac(1, 10),
        b"ID3\3\0\0\0\0\0\2xx" + sound(),
        sound().replace(struct.pack("<I", 16_000), struct.pack("<I", 1)),
        sound().replace(b"fmt ", b"tmf "),
        sound().replace(b"data", b"atad"),
        sound()[:30],
    ],
)
def test_audio_headers_that_demand_too_much_memory_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="a sound cannot be read"):
        check_audio(data)


def test_audio_files_above_the_limit_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="too large"):
        check_audio(b"\xff\xfb" + bytes(26 * 2**20))


@given(st.sampled_from([b"RIFF    WAVE", b"ID3", b"fLaC", b"\xff\xfb"]), st.binary(max_size=80))
def test_any_bytes_are_accepted_or_refused(begin: bytes, rest: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert len(check_audio(begin + rest)) == len(begin + rest)
