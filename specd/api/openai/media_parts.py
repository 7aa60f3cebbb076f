"""Images and sounds inside OpenAI's messages; the engine is given the file's bytes."""

from __future__ import annotations

from typing import Final

from specd.api import base64_data
from specd.errors import InvalidRequest

_PREFIXES: Final = tuple(
    f"data:{kind};base64," for kind in ("image/jpeg", "image/jpg", "image/png", "image/webp", "")
)


def image(url: str) -> bytes:
    """The bytes of a data URI.  Raises InvalidRequest; nothing is fetched."""
    if url.startswith(("http://", "https://")):
        raise InvalidRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    prefix = next((prefix for prefix in _PREFIXES if url.startswith(prefix)), None)
    if prefix is None:
        raise InvalidRequest("invalid image input")
    return _decode(url.removeprefix(prefix), "invalid image input")


def sound(data: str) -> bytes:
    return _decode(data, "invalid input_audio")


def _decode(text: str, error_message: str) -> bytes:
    try:
        return base64_data.decode(text)
    except InvalidRequest as error:
        raise InvalidRequest(error_message) from error
