"""A useless drafter with the cost of a real one: the worst case of a pair."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specd.bench.cache import atomic_output, cached_file
from specd.bench.gguf_file import open_gguf

#: Part of a cached file's name; raise it when the order of the rows changes.
_FORMAT = 1
_ROWS = {"token_embd.weight", "output.weight"}


def noise_drafter(source: Path) -> Path:
    """Return a cached copy of the drafter with the vocabulary's rows in another order.

    It reads and writes the wrong tokens at the same cost, since rows are whole blocks in every
    tensor type.  Control tokens keep their rows, so that drafts do not end early.
    Raises StoreError where the source is not a GGUF or the copy cannot be written.
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
    """Return row indexes with ordinary tokens moved by half a vocabulary; low ids are frequent."""
    order = np.arange(n_rows)
    kinds = reader.get_field("tokenizer.ggml.token_type")
    if kinds is None:
        return np.roll(order, n_rows // 2)
    ordinary = np.flatnonzero(np.array(kinds.contents()) == gguf.TokenType.NORMAL)
    order[ordinary] = np.roll(ordinary, len(ordinary) // 2)
    return order
