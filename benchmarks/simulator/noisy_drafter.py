"""A drafter made worse by noise in its weights: pairs of different quality are to be judged."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
from gguf import quants

from specd.bench.cache import atomic_output, cached_file
from specd.bench.gguf_file import open_gguf

#: Part of a cached file's name: raise it when the same share would give other weights.
_FORMAT = 1
_SEED = 20261122


def add_weight_noise(source: Path, noise: float) -> Path:
    """The same file, Gaussian noise added to its matrices, from the cache or atomic_output now.

    noise: its deviation, as a share of that of the matrix's own weights.  The embedding is left as
    it is.  StoreError: no GGUF, or no room or right to write it.
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
