"""A drafter that costs what another one does and guesses nothing: the worst that a pair can be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specd.bench.cache import atomic_output, cached_file
from specd.bench.gguf_file import open_gguf

#: Part of a cached file's name: raise it when the rows would be ordered differently.
_FORMAT = 1
_ROWS = {"token_embd.weight", "output.weight"}


def noise_drafter(source: Path) -> Path:
    """The same file but for the order of its vocabulary's rows, from the cache or written now.

    It reads other words than it is given and says others than it means, at the same price: rows are
    whole blocks in every tensor type.  Control tokens keep theirs, so that it does not end a draft
    early.  StoreError: no GGUF, or no room or right to write it.
    """
    open_gguf(source)
    return cached_file(source, f"noise-v{_FORMAT}", lambda path: _write(source, path))


def _write(source: Path, destination: Path) -> None:
    with atomic_output(destination, source.stat().st_size) as path:
        shutil.copyfile(source, path)
        _reorder(gguf.GGUFReader(path, "r+"))


def _reorder(reader: Any) -> None:
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name in _ROWS & tensors.keys():
        rows = tensors[name].data
        rows[:] = rows[_order(reader, len(rows))]
    reader.data.flush()


def _order(reader: Any, n_rows: int) -> npt.NDArray[np.intp]:
    """Ordinary tokens half a vocabulary further: frequent ones have the low ids in most of them."""
    order = np.arange(n_rows)
    kinds = reader.get_field("tokenizer.ggml.token_type")
    if kinds is None:
        return np.roll(order, n_rows // 2)
    ordinary = np.flatnonzero(np.array(kinds.contents()) == gguf.TokenType.NORMAL)
    order[ordinary] = np.roll(ordinary, len(ordinary) // 2)
    return order
