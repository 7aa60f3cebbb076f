"""A sound is told from an image by its first bytes."""

from __future__ import annotations

import pytest

from specd.core import is_audio
from tests.gguf_projectors import picture, sound


@pytest.mark.parametrize("data", [sound(), b"fLaC\0", b"ID3\3", b"\xff\xfb\x90"])
def test_sounds_are_known(data: bytes) -> None:
    assert is_audio(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_no_image_is_a_sound(kind: str) -> None:
    assert not is_audio(picture(kind=kind))


@pytest.mark.parametrize("data", [b"", b"\xff", b"RIFF\0\0\0\0AVI ", b"OggS", b"hello"])
def test_other_files_are_no_sounds(data: bytes) -> None:
    assert not is_audio(data)
