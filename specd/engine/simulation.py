"""Measure what models would take, without reading or allocating their weights.

`python -m specd.engine simulate` reads a JSON list of `SimulatedLoad` from stdin.  For each it
prints a line: a list of `ContextMemory`, or null if llama.cpp cannot load the model.  No GPU is
used: all contexts are in main memory.  Recurrent states are really allocated.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from specd.core import ContextMemory, NoPair, SimulatedLoad
from specd.engine.llama import library
from specd.engine.llama.context import LlamaContext
from specd.engine.llama.device_placement import DevicePlacement
from specd.engine.llama.encoder import LlamaEncoder
from specd.engine.llama.library import BufferUse
from specd.engine.llama.model import LlamaModel, without_weights
from specd.engine.loader import (
    NON_CAUSAL_BATCH,
    make_drafter_context,
    make_encoder,
    make_target_context,
)
from specd.errors import LoadFailed
from specd.ipc.parent_death import die_with_parent

#: Architectures whose image tokens attend to each other: an image is one pass.
_NON_CAUSAL_IMAGES = ("gemma3", "gemma4")


def main() -> int:
    """Answer the questions on stdin; return the exit status."""
    die_with_parent()
    for load in msgspec.json.decode(sys.stdin.buffer.read(), type=list[SimulatedLoad]):
        try:
            memory = measure(load)
        except LoadFailed:
            memory = None
        sys.stdout.write(msgspec.json.encode(memory).decode() + "\n")
        sys.stdout.flush()
    return 0


def measure(load: SimulatedLoad) -> list[ContextMemory]:
    """Return the memory of a context of each length in `load.n_ctxs`.  Raises LoadFailed."""
    native_log = library.start()
    native_log.begin()
    model = LlamaModel(
        (load.spec.drafter or "") if load.is_drafter else load.spec.weights,
        native_log,
        placement=DevicePlacement(devices=(), n_gpu_layers=0),
        use_mmap=False,
        adapt_params=lambda params: without_weights(params, load.architecture, load.n_vocab),
    )
    try:
        return [_measure_context(load, n_ctx, model) for n_ctx in load.n_ctxs]
    finally:
        model.close()


def _measure_context(load: SimulatedLoad, n_ctx: int, model: LlamaModel) -> ContextMemory:
    native_log = model.native_log
    native_log.begin()
    context = _make_context(load, n_ctx, model)
    context.close()
    caches = [buffer for buffer in native_log.buffers if buffer.layers]
    scratch = [buffer for buffer in native_log.buffers if buffer.use is BufferUse.SCRATCH]
    return ContextMemory(
        n_ctx=n_ctx,
        layers=tuple(
            (layer, cache.n_bytes // len(cache.layers))
            for cache in caches
            for layer in cache.layers
        ),
        n_cells=sum(cache.n_cells for cache in caches if cache.use is BufferUse.CACHE),
        scratch_bytes=sum(buffer.n_bytes for buffer in scratch),
        results_bytes=context.results_bytes,
    )


def _make_context(
    load: SimulatedLoad, n_ctx: int, model: LlamaModel
) -> LlamaContext | LlamaEncoder:
    spec = replace(load.spec, n_ctx=n_ctx)
    if spec.embeds:
        return make_encoder(model, spec)
    if spec.projector is not None and load.architecture.startswith(_NON_CAUSAL_IMAGES):
        spec = replace(spec, n_batch=max(spec.n_batch, NON_CAUSAL_BATCH))
    if load.is_drafter:
        return make_drafter_context(model, spec)
    drafts = spec.no_pair_reason != NoPair.DISABLED_BY_USER
    return make_target_context(model, spec, drafts=drafts)
