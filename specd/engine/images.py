"""Decoding of untrusted image files into pixels."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from specd.errors import InvalidRequest

#: Formats that are accepted; only their decoders are tried.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
#: Most memory for decoding one file, and the bytes that each pixel takes.  The limit is 50 million
#: pixels for most formats, as many as the largest cameras have.
_MAX_BYTES = 300_000_000
_BYTES_PER_PIXEL = 6
#: The WebP decoder keeps several copies of the whole image.
_BYTES_PER_WEBP_PIXEL = 17
#: Most pixels along one side, as in JPEG; every line takes memory of its own.
_MAX_SIDE = 2**16 - 1
#: No model uses more pixels; larger images are reduced while they are converted.
_ENOUGH_PIXELS = 2**24
#: Width and height of a tile that is converted at once, in pixels of the result.
_TILE = 1024
#: The transposition that undoes each EXIF orientation.
_EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The library's own limit only warns; _check_size raises an error instead.
Image.MAX_IMAGE_PIXELS = None


@dataclass(frozen=True, slots=True)
class Pixels:
    """A decoded image.  data: three bytes (RGB) per pixel, row by row from the top."""

    width: int
    height: int
    data: bytes

    def downscaled(self, share: float) -> Pixels:
        """Return the image reduced to about that share of its pixels."""
        side = share**0.5
        size = max(int(self.width * side), 1), max(int(self.height * side), 1)
        image = Image.frombytes("RGB", (self.width, self.height), self.data)
        return _pixels(image.resize(size, Image.Resampling.BICUBIC))


def read(data: bytes) -> Pixels:
    """Return the first image of a file, upright, with transparent parts on white.

    Raises InvalidRequest.
    """
    try:
        return _pixels(_decode_upright(data))
    except InvalidRequest:
        raise
    except UnidentifiedImageError as error:
        kinds = "PNG, JPEG, WebP, GIF or BMP"
        raise InvalidRequest(f"an image cannot be read: it is not {kinds}") from error
    except (OSError, SyntaxError, ValueError) as error:
        # The decoders raise these for damaged files, with a message.
        raise InvalidRequest(f"an image cannot be read: {error}") from error
    except Exception as error:
        # Boundary: on some damaged files a decoder fails with struct.error, IndexError and others.
        raise InvalidRequest("an image cannot be read: it is damaged") from error


def _decode_upright(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        _check_size(image)
        shrink = _shrink(image)
        # The JPEG decoder can reduce the image while it decodes.
        image.draft(None, (image.width // shrink, image.height // shrink))
        image.load()
        turn = _exif_transpose(image)
        opaque = _opaque(image, _shrink(image))
    return opaque if turn is None else opaque.transpose(turn)


def _check_size(image: Image.Image) -> None:
    each = _BYTES_PER_WEBP_PIXEL if image.format == "WEBP" else _BYTES_PER_PIXEL
    if image.mode == "CMYK":
        each = 8  # all coefficients of a JPEG in several scans are kept, two bytes for each
    if image.width * image.height * each > _MAX_BYTES or max(image.size) > _MAX_SIDE:
        size = f"{image.width} x {image.height}"
        raise InvalidRequest(f"an image of {size} pixels is too large")


def _shrink(image: Image.Image) -> int:
    """Return how many pixels become one, along each side."""
    side: float = (image.width * image.height / _ENOUGH_PIXELS) ** 0.5
    return math.ceil(side)


def _exif_transpose(image: Image.Image) -> Image.Transpose | None:
    try:
        return _EXIF_TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - the image may be intact although its EXIF data is not
        return None


def _opaque(image: Image.Image, shrink: int) -> Image.Image:
    """Return the image as RGB on white; conversion by tiles needs much less memory."""
    size = math.ceil(image.width / shrink), math.ceil(image.height / shrink)
    made = Image.new("RGB", size)
    for x, y in product(*(range(0, side, _TILE) for side in size)):
        right = min((x + _TILE) * shrink, image.width)
        lower = min((y + _TILE) * shrink, image.height)
        tile = _tile(image.crop((x * shrink, y * shrink, right, lower)))
        made.paste(tile if shrink == 1 else tile.reduce(shrink), (x, y))
    return made


def _tile(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Keep the upper byte of 16-bit grey values; Pillow's conversion would keep the lower one.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _pixels(image: Image.Image) -> Pixels:
    return Pixels(image.width, image.height, image.tobytes())
