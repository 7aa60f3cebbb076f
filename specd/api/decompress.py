"""Decompresses request bodies, with a limit on the result.

aiohttp's own decompression closes the connection on a corrupt body, and continues to decompress a
body after it was refused as too large.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from specd.api.errors import BodyTooLarge
from specd.errors import InvalidRequest

_MODULE: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_zstd: Any = importlib.import_module(_MODULE)

#: Ollama's limit for zstd, which applies to gzip and deflate here too.
MAX_DECOMPRESSED_BYTES: Final = 20 * 2**20

_DECOMPRESSORS: Final[Mapping[str, Callable[[], Any]]] = {
    "zstd": _zstd.ZstdDecompressor,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}


def is_compressed(encoding: str) -> bool:
    return encoding.strip().lower() in _DECOMPRESSORS


def decompress(raw: bytes, encoding: str) -> bytes:
    """Return the decompressed body.

    encoding: value of Content-Encoding; an unknown one is ignored, as in Ollama.
    Raises BodyTooLarge, or InvalidRequest for a corrupt or incomplete body.
    """
    make_decompressor = _DECOMPRESSORS.get(encoding.strip().lower())
    if make_decompressor is None or not raw:
        return raw
    decompressor = make_decompressor()
    try:
        data: bytes = decompressor.decompress(raw, MAX_DECOMPRESSED_BYTES + 1)
    except (zlib.error, _zstd.ZstdError) as error:
        raise InvalidRequest("unexpected EOF") from error
    if len(data) > MAX_DECOMPRESSED_BYTES:
        raise BodyTooLarge("request body too large")
    if not decompressor.eof:
        raise InvalidRequest("unexpected EOF")
    return data
