"""Format numbers of bytes for people."""

from __future__ import annotations

from typing import Final

_MIB: Final = 2**20
_GIB: Final = 2**30


def size(n_bytes: int) -> str:
    """Return the size in GiB or MiB, such as "1.5 GiB"."""
    n_bytes = max(n_bytes, 0)
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"
