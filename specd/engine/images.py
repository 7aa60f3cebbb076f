"""Image files, which nobody has checked, as pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from specd.errors import InvalidRequest

#: Read by their own decoders and no others.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
#: Three bytes each when unpacked; a photograph of the largest cameras has as many.
_MAX_PIXELS = 100_000_000
#: How a camera was held, and what undoes it.
_TURNS = {
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

    def smaller(self, share: float) -> Pixels:
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
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise InvalidRequest(f"an image of {size} pixels is too large")
            return _pixels(_opaque(_upright(image)))
    except UnidentifiedImageError as error:
        kinds = "PNG, JPEG, WebP, GIF or BMP"
        raise InvalidRequest(f"an image cannot be read: it is not {kinds}") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        # What the decoders raise over damaged files.
        raise InvalidRequest(f"an image cannot be read: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (OSError, SyntaxError, ValueError):
        return image  # the picture may be whole for all that
    return image if turn is None else image.transpose(turn)


def _opaque(image: Image.Image) -> Image.Image:
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
