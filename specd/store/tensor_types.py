"""The types of tensors: ggml's numbers, names and sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """n_bytes for each n_elements; unknown sizes are 0 bytes."""

    name: str
    n_elements: int
    n_bytes: int


@functools.cache
def tensor_types() -> Mapping[int, TensorType]:
    """The tensor types of ggml, by number."""
    # Imported late: it brings numpy along, which the daemon's start need not wait for.
    from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415

    return {
        int(kind): TensorType(kind.name, n_elements, n_bytes)
        for kind, (n_elements, n_bytes) in GGML_QUANT_SIZES.items()
    }
