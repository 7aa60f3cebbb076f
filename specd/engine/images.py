"""Image files, which nobody has checked, as pixels."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from specd.errors import InvalidRequest

#: Read by their own decoders and no others.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
#: What one file may take while it is unpacked, and how much that is for each of its pixels: most
#: have 50 million, as the largest cameras do.
_MAX_BYTES = 300_000_000
_BYTES_PER_PIXEL = 6
#: Its decoder keeps several whole pictures.
_BYTES_PER_WEBP_PIXEL = 17
#: No JPEG is wider or higher; lines, too, take memory.
_MAX_SIDE = 2**16 - 1
#: No model looks at more; larger pictures are made smaller while they are converted.
_ENOUGH_PIXELS = 2**24
#: Width and height of what is converted at once, in pixels of the result.
_TILE = 1024
#: How a camera was held, and what undoes it.
_EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: The library's own limit is a warning; ours is below, and an error.
Image.MAX_IMAGE_PIXELS = None


@dataclass(frozen=True, slots=True)
class Pixels:
    """data: three bytes per pixel, row by row from the top."""

    width: int
    height: int
    data: bytes

    def downscaled(self, share: float) -> Pixels:
        """With about that share of its pixels."""
        side = share**0.5
        size = max(int(self.width * side), 1), max(int(self.height * side), 1)
        image = Image.frombytes("RGB", (self.width, self.height), self.data)
        return _pixels(image.resize(size, Image.Resampling.BICUBIC))


def read(data: bytes) -> Pixels:
    """The first picture of a file, upright, on white where it is transparent.

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
        # What the decoders say of damaged files.
        raise InvalidRequest(f"an image cannot be read: {error}") from error
    except Exception as error:
        # Border: what they say nothing of they stumble over (struct.error, IndexError, ...).
        raise InvalidRequest("an image cannot be read: it is damaged") from error


def _decode_upright(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        _check_size(image)
        shrink = _shrink(image)
        # JPEGs come out smaller by themselves.
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
    """How many of its pixels become one, along each side."""
    side: float = (image.width * image.height / _ENOUGH_PIXELS) ** 0.5
    return math.ceil(side)


def _exif_transpose(image: Image.Image) -> Image.Transpose | None:
    try:
        return _EXIF_TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - the picture may be whole for all that
        return None


def _opaque(image: Image.Image, shrink: int) -> Image.Image:
    """Three colours, on white; tile by tile, as a whole would take several times its memory."""
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
        # Greys of 16 bits, of which the conversion would keep the lower half.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _pixels(image: Image.Image) -> Pixels:
    return Pixels(image.width, image.height, image.tobytes())
