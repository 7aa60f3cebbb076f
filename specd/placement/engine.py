"""Estimate the memory of an engine's models from its spec and the shapes of its files.

The engine process computes these sizes itself.  They are repeated here, and a test compares them
with what an engine loads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from specd import core
from specd.placement.estimate import Footprint, footprint
from specd.store.shape import Shape

#: The longest draft that the engine's controller makes.
MAX_DRAFT: Final = 16
_MIN_BATCH: Final = 32
#: Tokens of one pass for models whose image tokens attend to each other: an image is one pass.
_NON_CAUSAL_BATCH: Final = 1152
_SEE_EACH_OTHER: Final = ("gemma3", "gemma4")
#: Share of the weights that saved recurrent states may take; states that are always saved.
_STATES_SHARE, _LEAST_STATES = 1 / 8, 3
#: For embeddings: most texts in one pass, least tokens of one pass, most bytes of its logits.
_MAX_TEXTS, _MIN_WHOLE, _MAX_LOGITS_BYTES = 64, 2048, 4 * 2**30


def footprints(
    spec: core.EngineSpec, target: Shape, drafter: Shape | None = None, *, extra_bytes: int = 0
) -> tuple[Footprint, Footprint | None]:
    """Return the footprints of target and drafter; None for the drafter if there is none.

    extra_bytes: size of the target's projector and adapters.
    """
    spec = replace(spec, n_ctx=min(spec.n_ctx, target.n_ctx_train or spec.n_ctx))
    if spec.embeds:
        return _encoder(spec, target, extra_bytes), None
    if spec.projector is not None and target.architecture.startswith(_SEE_EACH_OTHER):
        spec = replace(spec, n_batch=max(spec.n_batch, _NON_CAUSAL_BATCH))
    longest = MAX_DRAFT if spec.max_draft is None else max(0, min(spec.max_draft, MAX_DRAFT))
    drafts = spec.no_pair_reason != core.NoPair.DISABLED_BY_USER
    n_rewind = _n_rewind(target, spec, longest if drafts else 0)
    of_target = _decoder(spec, target, longest, n_rewind=n_rewind, extra_bytes=extra_bytes)
    if drafter is None:
        return of_target, None
    # A recurrent drafter cannot rewind, so it drafts in a second sequence.
    forks = drafter.is_recurrent and longest > 0
    return of_target, _decoder(spec, drafter, longest, forks=forks)


def _decoder(
    spec: core.EngineSpec,
    shape: Shape,
    longest: int,
    *,
    n_rewind: int = 0,
    forks: bool = False,
    extra_bytes: int = 0,
) -> Footprint:
    n_slots = max(spec.n_slots, 1)
    return footprint(
        shape,
        n_ctx=spec.n_ctx,
        n_slots=n_slots,
        n_batch=_n_batch(spec),
        kv_cache_type=spec.kv_cache_type,
        n_outputs=n_slots * (longest + 1),
        flash_attention=spec.flash_attention,
        n_rewind=n_rewind,
        n_sequences=2 * n_slots if forks else n_slots,
        extra_bytes=extra_bytes,
    )


def _n_batch(spec: core.EngineSpec) -> int:
    return max(min(spec.n_batch, spec.n_ctx * max(spec.n_slots, 1)), _MIN_BATCH)


def _n_rewind(target: Shape, spec: core.EngineSpec, longest: int) -> int:
    """Return how many earlier states are saved per slot."""
    wanted = max(min(longest, _n_batch(spec) - 2), 0)
    state_bytes = 4 * sum(layer.kv_layout.state for layer in target.layers) * max(spec.n_slots, 1)
    if not state_bytes or not target.can_rewind or not wanted:
        return 0
    affordable = int(_STATES_SHARE * target.weights_bytes) // state_bytes
    return min(wanted, max(affordable, _LEAST_STATES))


def _encoder(spec: core.EngineSpec, shape: Shape, extra_bytes: int) -> Footprint:
    has_head = shape.has_cache and shape.has_head
    ends = has_head and shape.pools_last_token
    n_ctx = spec.n_ctx
    if not ends:
        n_rows = 0 if has_head else _MAX_LOGITS_BYTES // (4 * max(shape.n_vocab, 1))
        n_ctx = min(n_ctx, max(spec.n_batch, _MIN_WHOLE, n_rows))
    n_shared = min(spec.n_batch, n_ctx)
    n_texts = 1 if shape.is_recurrent else max(min(_MAX_TEXTS, n_shared), 1)
    n_pass = -(-(n_shared if ends else n_ctx) // n_texts) * n_texts
    found = footprint(
        shape,
        n_ctx=max(n_ctx, n_pass),
        n_slots=1,
        n_batch=n_pass,
        kv_cache_type=spec.kv_cache_type,
        n_outputs=n_pass,
        flash_attention=spec.flash_attention,
        n_rewind=0,
        n_sequences=n_texts,
        extra_bytes=extra_bytes,
    )
    vectors = 4 * n_pass * shape.width.n_embd
    return replace(found, host_scratch_bytes=found.host_scratch_bytes + vectors)
