"""Loading of a target and its drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specd.core import EngineFacts, EngineSpec, NoPair, PassCosts
from specd.engine import self_check
from specd.engine.backend import Backend, DecodeFailed
from specd.engine.calibration import calibrate, has_finite_logits
from specd.engine.exact_passes import ExactPasses
from specd.engine.llama import library
from specd.engine.llama.context import LlamaContext
from specd.engine.llama.device_placement import DevicePlacement
from specd.engine.llama.model import LlamaModel, LlamaVocabulary
from specd.engine.media_cache import MediaCache
from specd.engine.speculative.controller import MAX_DRAFT, longest_draft
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.siblings import MAX_SIBLINGS
from specd.errors import LoadFailed, OutOfMemory

if TYPE_CHECKING:
    from specd.engine.llama.projector import LlamaProjector

log = logging.getLogger("specd.engine")

#: Rows for an image whose tokens attend to each other; Gemma 4's largest has 1120.
_NON_CAUSAL_BATCH = 1152
#: Why nothing is drafted if SPECD_EXACT forbids it.
_ROUNDS_BY_WIDTH = (
    "SPECD_EXACT turned drafting off:"
    " with this build, results depend on how many tokens one pass checks"
)


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A loaded target and, if any, its drafter; both live as long as the process.

    drafter: if None, facts.no_pair_reason says why.  media: None if the model accepts no images.
    exact: the division into passes under SPECD_EXACT; None: any division is allowed.
    """

    target: Backend
    vocabulary: LlamaVocabulary
    drafter: Backend | None
    media: MediaCache | None
    costs: CostModel
    facts: EngineFacts
    exact: ExactPasses | None = None


def load(spec: EngineSpec, on_progress: Callable[[float], None]) -> LoadedPair:
    """Load the target, then the drafter; if the drafter fails, serve without it and say why.

    Raises LoadFailed if the target cannot serve.
    """
    native_log = library.start()
    placement = DevicePlacement.of_target(spec)
    model = load_model(spec.weights, spec, placement, native_log, on_progress)
    for path in spec.adapters:
        model.adapt(path)
    if not model.has_decoder:
        raise LoadFailed(f"{spec.weights} cannot generate text: it is an encoder")
    # The context is never longer than the one the model was trained with.
    spec = replace(spec, n_ctx=min(spec.n_ctx, model.n_ctx_train or spec.n_ctx))
    projector = _load_projector(spec, model, native_log)
    if projector is not None and not projector.is_causal:
        # Tokens of an image that attend to each other must share a pass.
        spec = replace(spec, n_batch=max(spec.n_batch, _NON_CAUSAL_BATCH))
    drafts = spec.no_pair_reason != NoPair.DISABLED_BY_USER
    longest = longest_draft(spec.max_draft)
    check_result = self_check.check(model, spec, native_log, longest=longest)
    if check_result.passes is not None and not check_result.passes.drafts:
        spec = replace(
            spec,
            drafter=None,
            no_pair_reason=NoPair.NOT_EXACT,
            no_pair_detail=_ROUNDS_BY_WIDTH,
        )
    target = _make_context(
        model,
        spec,
        native_log,
        longest=longest,
        n_rewind=longest if drafts else 0,
        n_leaves=MAX_SIBLINGS if check_result.can_take_leaves and spec.drafter is not None else 0,
        cache_per_slot=check_result.passes is not None,
    )
    _check(target, spec.weights, native_log)
    drafter, reason, detail = _load_drafter(spec, target, native_log, on_progress)
    costs = calibrate(target, drafter, longest=longest)
    facts = EngineFacts(
        n_ctx=spec.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.vocabulary.n_vocab,
        target=target.memory(),
        drafter=drafter.memory() if drafter is not None else None,
        no_pair_reason=reason,
        no_pair_detail=detail,
        plain_tokens_per_s=1.0 / costs.target_s(1),
        costs=_reported_costs(costs),
        exact=check_result.exactness,
        threshold=_threshold(spec, target, costs),
    )
    media = MediaCache(projector) if projector is not None else None
    return LoadedPair(target, model.vocabulary, drafter, media, costs, facts, check_result.passes)


def _check(backend: Backend, path: str, native_log: library.NativeLog) -> None:
    try:
        numbers = has_finite_logits(backend)
    except DecodeFailed as error:
        raise native_log.load_error(f"{path} cannot be run: {error}") from error
    if not numbers:
        raise LoadFailed(
            f"{path} computes no numbers (NaN or infinity): its weights are damaged, or too large"
            " for the format of its cache"
        )


def _threshold(spec: EngineSpec, target: Backend, costs: CostModel) -> float | None:
    """Return the acceptance that drafting needs; None if nothing can be drafted."""
    limit, longest = target.rewind_limit, longest_draft(spec.max_draft)
    if limit == 0 or spec.no_pair_reason in {NoPair.DISABLED_BY_USER, NoPair.NOT_EXACT}:
        return None
    if spec.acceptance_threshold is not None:
        return spec.acceptance_threshold
    return costs.break_even(longest if limit is None else min(longest, limit))


def _reported_costs(costs: CostModel) -> PassCosts:
    target_s, draft_step_s, _ = costs.measured()
    return PassCosts(target_s=tuple(target_s.items()), draft_step_s=draft_step_s)


def _load_projector(
    spec: EngineSpec, model: LlamaModel, native_log: library.NativeLog
) -> LlamaProjector | None:
    if spec.projector is None:
        return None
    # Most models have no projector, and its libraries take 0.1 s to load.
    from specd.engine.llama.projector import LlamaProjector  # noqa: PLC0415

    return LlamaProjector(
        spec.projector,
        model,
        native_log,
        n_ctx=spec.n_ctx,
        n_threads=spec.n_threads,
        placement=DevicePlacement.of_target(spec),
        flash_attention=spec.flash_attention,
    )


def _load_drafter(
    spec: EngineSpec,
    target: Backend,
    native_log: library.NativeLog,
    on_progress: Callable[[float], None],
) -> tuple[Backend | None, str, str]:
    """Return (backend, "", ""), or (None, reason, explanatory sentence) if it cannot serve."""
    if spec.drafter is None:
        return None, spec.no_pair_reason, spec.no_pair_detail
    if target.rewind_limit == 0:
        detail = "this architecture cannot remove a token from its cache, so drafts cannot be tried"
        return None, NoPair.CANNOT_REWIND, detail
    with ExitStack() as cleanup:
        try:
            placement = DevicePlacement.of_drafter(spec)
            model = load_model(spec.drafter, spec, placement, native_log, on_progress)
            cleanup.callback(model.close)
            drafter = _make_context(model, spec, native_log, n_ahead=longest_draft(spec.max_draft))
            cleanup.callback(drafter.close)
            _check(drafter, spec.drafter, native_log)
        except LoadFailed as error:
            log.warning("serving without a drafter: %s", error)
            no_room = isinstance(error, OutOfMemory)
            return None, NoPair.NO_VRAM if no_room else NoPair.LOAD_FAILED, str(error)
        cleanup.pop_all()
    return drafter, "", ""


def load_model(
    path: str,
    spec: EngineSpec,
    placement: DevicePlacement,
    native_log: library.NativeLog,
    on_progress: Callable[[float], None],
) -> LlamaModel:
    """Load one model.  Raises LoadFailed."""
    native_log.begin()
    return LlamaModel(
        path,
        native_log,
        placement=placement,
        use_mmap=spec.use_mmap,
        use_mlock=spec.use_mlock,
        on_progress=on_progress,
    )


def _make_context(
    model: LlamaModel,
    spec: EngineSpec,
    native_log: library.NativeLog,
    *,
    longest: int = MAX_DRAFT,
    n_rewind: int = 0,
    n_ahead: int = 0,
    n_leaves: int = 0,
    cache_per_slot: bool = False,
) -> LlamaContext:
    """Create a context of a model.  longest: longest draft that is verified in a pass."""
    return LlamaContext(
        model,
        native_log,
        n_ctx=spec.n_ctx,
        n_slots=spec.n_slots,
        n_batch=max(min(spec.n_batch, spec.n_ctx * spec.n_slots), 32),
        n_outputs=max(spec.n_slots, 1) * (longest + 1),
        n_threads=spec.n_threads,
        flash_attention=spec.flash_attention,
        kv_cache_type=spec.kv_cache_type,
        n_rewind=n_rewind,
        n_ahead=n_ahead,
        n_leaves=n_leaves,
        cache_per_slot=cache_per_slot,
    )
