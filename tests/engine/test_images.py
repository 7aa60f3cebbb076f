"""Image files become upright, opaque pixels; other files are refused with a reason."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from specd.engine import images
from specd.engine.images import Pixels, read
from specd.errors import InvalidRequest
from tests.gguf_projectors import picture


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    found = read(data)
    return np.frombuffer(found.data, np.uint8).reshape(found.height, found.width, 3)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_files_decode_to_the_same_pixels(kind: str) -> None:
    assert np.array_equal(pixels(picture(1, (7, 5), kind)), pixels(picture(1, (7, 5))))


@pytest.mark.parametrize("kind", ["JPEG", "GIF"])
def test_lossy_files_decode_to_similar_pixels(kind: str) -> None:
    plain = Image.linear_gradient("L").convert("RGB")
    difference = pixels(saved(plain, kind)).astype(int) - np.asarray(plain)
    assert np.abs(difference).max() < 10


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode in {"CMYK", "YCbCr"} else "PNG"
    found = read(saved(Image.new(mode, (3, 2)), kind))
    assert (found.width, found.height, len(found.data)) == (3, 2, 18)


def test_16_bit_greys_keep_their_upper_byte() -> None:
    values = np.array([[0, 256, 32768, 65535]], np.uint16)
    assert pixels(saved(Image.fromarray(values)))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_transparent_pixels_become_white() -> None:
    assert pixels(saved(Image.new("RGBA", (1, 1), (0, 0, 0, 0)))).tolist() == [[[255] * 3]]
    assert pixels(saved(Image.new("RGBA", (1, 1), (9, 8, 7, 255)))).tolist() == [[[9, 8, 7]]]


def test_exif_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned
    image = Image.new("RGB", (8, 4))
    image.paste((255, 255, 255), (0, 0, 4, 4))
    found = pixels(saved(image, "PNG", exif=exif))
    assert found.shape == (8, 4, 3)
    assert found[:4].min() == 255
    assert found[4:].max() == 0


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(data)[0, 0].tolist() == [255, 0, 0]


CUT = [picture()[:60], picture(kind="JPEG")[:200], picture(kind="WEBP")[:50]]


@pytest.mark.parametrize("data", [b"", b"hello", b"BM" * 9, *CUT])
def test_other_files_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="an image cannot be read"):
        read(data)


def chunk(name: bytes, content: bytes = b"") -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)


@pytest.mark.parametrize("size", [(2**16 - 1, 2**15), (2**16, 1), (1, 2**16), (7072, 7072)])
def test_a_decompression_bomb_is_refused_before_decoding(size: tuple[int, int]) -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    with pytest.raises(InvalidRequest, match=f"of {size[0]} x {size[1]} pixels is too large"):
        read(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT"))


@pytest.mark.parametrize(
    "name, content", [(b"gAMA", b""), (b"tRNS", b""), (b"cHRM", b"x"), (b"iCCP", b"")]
)
def test_decoder_failures_are_reported_as_damage(name: bytes, content: bytes) -> None:
    data = picture(2, (4, 4))
    end = data.rindex(b"IEND") - 4
    with pytest.raises(InvalidRequest, match="an image cannot be read: it is damaged"):
        read(data[:end] + chunk(name, content) + data[end:])


LARGE: dict[str, tuple[str, Image.Image, dict[str, object]]] = {
    "palette": ("PNG", Image.new("P", (4200, 4200)), {"transparency": 0}),
    "alpha": ("PNG", Image.new("RGBA", (4000, 4000)), {}),
    "JPEG": ("JPEG", Image.new("RGB", (5000, 5000), "white"), {"progressive": True}),
}
BOUNDED = """
import resource, sys
from specd.engine import images
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 200_000_000,) * 2)
found = images.read(sys.stdin.buffer.read())
assert found.width * found.height <= 2**24
assert found.data == b"\\xff" * len(found.data)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited so on Linux alone")
@pytest.mark.parametrize("name", LARGE)
def test_a_large_image_takes_little_memory(name: str) -> None:
    kind, image, options = LARGE[name]
    command = (sys.executable, "-c", BOUNDED)
    subprocess.run(command, input=saved(image, kind, **options), check=True)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
@pytest.mark.parametrize("shrink", [2, 4])
def test_very_large_images_are_reduced(
    monkeypatch: pytest.MonkeyPatch, kind: str, shrink: int
) -> None:
    """The reduction works in tiles, which must not be visible."""
    whole = Image.radial_gradient("L").resize((64, 48)).convert("RGB")
    size = 64 // shrink, 48 // shrink
    monkeypatch.setattr(images, "_TILE", 7)
    monkeypatch.setattr(images, "_ENOUGH_PIXELS", size[0] * size[1])
    expected = np.asarray(whole.resize(size, Image.Resampling.BOX)).astype(int)
    assert np.abs(pixels(saved(whole, kind)) - expected).max() < 10


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_images_are_decoded_or_refused(kind: str, damage: list[tuple[int, int]]) -> None:
    data = bytearray(picture(3, (9, 9), kind))
    for at, value in damage:
        data[at % len(data)] = value
    try:
        found = read(bytes(data))
    except InvalidRequest:
        return
    assert len(found.data) == 3 * found.width * found.height


def test_downscaling_keeps_the_aspect_ratio() -> None:
    made = Pixels(40, 20, bytes(2400)).downscaled(1 / 4)
    assert (made.width, made.height, len(made.data)) == (20, 10, 600)
    assert Pixels(1, 9, bytes(27)).downscaled(1 / 100).width == 1
