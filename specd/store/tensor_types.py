"""The types of tensors: ggml's numbers, names and sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type.  n_bytes: size of each `n_elements` elements, 0 if unknown."""

    name: str
    n_elements: int
    n_bytes: int


@functools.cache
def tensor_types() -> Mapping[int, TensorType]:
    """Return ggml's tensor types by number."""
    # Imported late: it imports numpy, which would slow down the daemon's start.
    from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415

    return {
        int(kind): TensorType(kind.name, n_elements, n_bytes)
        for kind, (n_elements, n_bytes) in GGML_QUANT_SIZES.items()
    }
