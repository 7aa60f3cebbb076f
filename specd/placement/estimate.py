"""What a model will take in memory, before it is loaded (contract 6)."""

from __future__ import annotations

from dataclasses import dataclass

from specd import core
from specd.placement.defaults import GIB

#: Bytes of 32 numbers in a cache, by llama.cpp's layout of each format.
_CACHE_BLOCK_BYTES = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
#: What passes of so many tokens need beside weights and cache.
_SCRATCH = ((2048, 2 * GIB), (1024, 3 * GIB // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A GGUF's size, and the numbers that attention keeps of one token: keys and values."""

    n_bytes: int
    n_cached: int = 0


def engine_bytes(
    spec: core.EngineSpec,
    target: Weights,
    drafter: Weights | None = None,
    *,
    others_bytes: int = 0,
) -> int:
    """Weights, caches and scratch of an engine whose spec leaves nothing open.

    others_bytes: the files of its projector and its adapters.
    A bound from above where layers look through a window or share their cache.
    """
    models = [target] if drafter is None else [target, drafter]
    n_tokens = spec.n_ctx * spec.n_slots
    n_cached = n_tokens * sum(model.n_cached for model in models)
    cache = n_cached * _CACHE_BLOCK_BYTES[spec.kv_cache_type] // 32
    scratch = next((n_bytes for least, n_bytes in _SCRATCH if spec.n_batch >= least), 0)
    return sum(model.n_bytes for model in models) + others_bytes + cache + scratch


assert set(_CACHE_BLOCK_BYTES) == set(core.KV_CACHE_TYPES)
