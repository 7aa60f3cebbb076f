"""The pair that a bench measures: files, a local model with its drafter, or the demo pair.

The worst case of a pair is a useless drafter with the cost of a real one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specd import core
from specd.bench.gguf_cache import atomic_output, cached_file, open_gguf
from specd.bench.quantized_blocks import FileType
from specd.bench.synthetic import cached
from specd.errors import InvalidRequest
from specd.pairs import Pairs, load_rules
from specd.settings import Settings
from specd.store import Library
from specd.store.demo import stored_demo

#: Context of each slot, tokens: enough for every prompt and the longest answer.
N_CTX = 2048
#: Part of a cached noise drafter's name; raise it when the order of the rows changes.
_NOISE_FORMAT = 1
_VOCABULARY_ROWS = {"token_embd.weight", "output.weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pair that a bench measures.

    detail: why there is no drafter.  padded: whether the target was padded for the bench.
    """

    name: str
    target: Path
    drafter: Path | None = None
    drafter_name: str = ""
    pair_source: str = ""
    detail: str = ""
    padded: bool = False

    def enlarged(
        self,
        n_parameters: int,
        progress: Callable[[float], None],
        file_type: FileType = FileType.Q8_0,
    ) -> Subject:
        """Return the pair with its target padded to that size.  Raises StoreError."""
        target = cached(self.target, n_parameters, progress, file_type=file_type)
        return replace(self, target=target, padded=True)

    def spec(self, settings: Settings, *, n_threads: int, n_gpu_layers: int) -> core.EngineSpec:
        """Return the specification with which the daemon would load the pair, with one slot."""
        return core.EngineSpec(
            weights=str(self.target),
            drafter=str(self.drafter) if self.drafter else None,
            drafter_name=self.drafter_name,
            pair_source=self.pair_source,
            no_pair_detail=self.detail,
            n_ctx=N_CTX,
            n_gpu_layers=n_gpu_layers,
            n_threads=n_threads,
            flash_attention=settings.flash_attention,
            kv_cache_type=settings.kv_cache_type,
            acceptance_threshold=settings.acceptance_threshold,
            trace_dir=str(settings.trace_dir or ""),
            exact=settings.exact,
        )


def find_subject(
    model: str, target: Path | None, drafter: Path | None, settings: Settings
) -> Subject:
    """Return the pair of a local model or file, or the demo pair where neither is named.

    drafter: replaces the one that the daemon would choose.  Raises InvalidRequest.
    """
    if model and target is not None:
        raise InvalidRequest("give a model or --target, not both")
    if target is not None:
        subject = Subject(name=target.name, target=target)
    elif model:
        subject = _of_store(model, settings)
    else:
        subject = demo_subject()
    for file in filter(None, (target, drafter)):
        if not file.is_file():
            raise InvalidRequest(f"{file}: no such file")
    if drafter is None:
        return subject
    return replace(
        subject, drafter=drafter, drafter_name=drafter.name, pair_source="user", detail=""
    )


def demo_subject() -> Subject:
    """Return the demo pair.  Raises InvalidRequest where the installation has none."""
    stored = stored_demo()
    if stored is None:
        raise InvalidRequest("this installation lacks the demo pair: name a model to bench")
    return Subject(
        name=stored.name.short,
        target=stored.weights,
        drafter=stored.last_path("draft"),
        drafter_name=f"{stored.name.short} (its own draft)",
        pair_source="manifest",
    )


def _of_store(model: str, settings: Settings) -> Subject:
    # The demo pair can be named even where the store does not list it.
    library = Library(settings.models, demo=True)
    target = library.resolve(model)
    pair = Pairs(library, load_rules(settings.pairs_file)).pair(target)
    subject = Subject(name=target.name, target=target.weights, detail=pair.detail)
    if pair.drafter is None:
        return subject
    return replace(
        subject,
        drafter=pair.drafter.weights,
        drafter_name=pair.drafter.name,
        pair_source=pair.drafter.source,
    )


# --------------------------------------------------------------------------- a useless drafter


def noise_drafter(source: Path) -> Path:
    """Return a cached copy of the drafter with the vocabulary's rows in another order.

    It reads and writes the wrong tokens at the same cost, since rows are whole blocks in every
    tensor type.  Control tokens keep their rows, so that drafts do not end early.
    Raises StoreError where the source is not a GGUF or the copy cannot be written.
    """
    open_gguf(source)
    return cached_file(
        source, f"noise-v{_NOISE_FORMAT}", lambda path: _write_reordered(source, path)
    )


def _write_reordered(source: Path, destination: Path) -> None:
    with atomic_output(destination, source.stat().st_size) as path:
        shutil.copyfile(source, path)
        _reorder_rows(gguf.GGUFReader(path, "r+"))


def _reorder_rows(reader: Any) -> None:
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name in _VOCABULARY_ROWS & tensors.keys():
        rows = tensors[name].data
        rows[:] = rows[_row_order(reader, len(rows))]
    reader.data.flush()


def _row_order(reader: Any, n_rows: int) -> npt.NDArray[np.intp]:
    """Return row indexes with ordinary tokens moved by half a vocabulary; low ids are frequent."""
    order = np.arange(n_rows)
    kinds = reader.get_field("tokenizer.ggml.token_type")
    if kinds is None:
        return np.roll(order, n_rows // 2)
    ordinary = np.flatnonzero(np.array(kinds.contents()) == gguf.TokenType.NORMAL)
    order[ordinary] = np.roll(ordinary, len(ordinary) // 2)
    return order
