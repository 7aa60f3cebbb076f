"""Bodies that come compressed, within a bound on what becomes of them.

Here and not in aiohttp: there a body that does not unfold breaks the connection, and one that
unfolds without end goes on to do so after it was refused.
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

#: Ollama's limit on what zstd may unfold to, and ours for gzip too: a few bytes become gigabytes.
MAX_DECOMPRESSED_BYTES: Final = 20 * 2**20

_DECOMPRESSORS: Final[Mapping[str, Callable[[], Any]]] = {
    "zstd": _zstd.ZstdDecompressor,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}


def is_compressed(encoding: str) -> bool:
    return encoding.strip().lower() in _DECOMPRESSORS


def decompress(raw: bytes, encoding: str) -> bytes:
    """encoding: the header's value; one that nobody knows says nothing, as in Ollama.

    Raises BodyTooLarge, or InvalidRequest where it is not what the header says, or cut short.
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
