"""Make worse drafters by adding noise to the weights, to judge pairs of different quality."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
from gguf import quants

from specd.bench.gguf_cache import atomic_output, cached_file, open_gguf

#: Part of a cached file's name: raise it if the same share gives other weights.
_FORMAT = 1
_SEED = 20261122


def add_weight_noise(source: Path, noise: float) -> Path:
    """Return a copy of the file with Gaussian noise added to its matrices, from the cache if
    possible.

    noise: its standard deviation, as a share of that of the matrix's own weights.  The embedding
    stays as it is.  Raises StoreError for a file that is not a GGUF, or a copy that cannot be
    written.
    """
    open_gguf(source)
    return cached_file(
        source, f"worse-v{_FORMAT}-{noise:g}", lambda path: _write(source, path, noise)
    )


def _write(source: Path, destination: Path, noise: float) -> None:
    chance = np.random.default_rng(_SEED)
    with atomic_output(destination, source.stat().st_size) as path:
        shutil.copyfile(source, path)
        reader = gguf.GGUFReader(path, "r+")
        for tensor in reader.tensors:
            if len(tensor.shape) < 2 or not tensor.name.startswith("blk."):
                continue
            weights = quants.dequantize(tensor.data, tensor.tensor_type)
            weights = weights + chance.normal(0.0, noise * weights.std(), weights.shape)
            tensor.data[:] = quants.quantize(weights.astype(np.float32), tensor.tensor_type)
        reader.data.flush()
