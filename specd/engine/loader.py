"""Load the models of an engine: a target with its drafter, or an embedding model."""

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
from specd.engine.llama.encoder import LlamaEncoder
from specd.engine.llama.model import LlamaModel, LlamaVocabulary
from specd.engine.media import MediaCache
from specd.engine.speculative.controller import MAX_DRAFT, longest_draft
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_proposal import MAX_SIBLINGS
from specd.errors import LoadFailed, OutOfMemory

if TYPE_CHECKING:
    from specd.engine.llama.projector import LlamaProjector

log = logging.getLogger("specd.engine")

#: Rows for an image whose tokens attend to each other; Gemma 4's largest has 1120.
NON_CAUSAL_BATCH = 1152
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


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    encoder: LlamaEncoder
    vocabulary: LlamaVocabulary
    facts: EngineFacts


def load_pair(spec: EngineSpec, on_progress: Callable[[float], None]) -> LoadedPair:
    """Load the target, then the drafter; if the drafter fails, serve without it and say why.

    Raises LoadFailed if the target cannot serve.
    """
    model = _load_target(spec, on_progress)
    if not model.has_decoder:
        raise LoadFailed(f"{spec.weights} cannot generate text: it is an encoder")
    # The context is never longer than the one the model was trained with.
    spec = replace(spec, n_ctx=min(spec.n_ctx, model.n_ctx_train or spec.n_ctx))
    projector = _load_projector(spec, model)
    if projector is not None and not projector.is_causal:
        # Tokens of an image that attend to each other must share a pass.
        spec = replace(spec, n_batch=max(spec.n_batch, NON_CAUSAL_BATCH))
    longest = longest_draft(spec.max_draft)
    drafts = spec.no_pair_reason != NoPair.DISABLED_BY_USER
    check_result = self_check.check(model, spec, longest=longest)
    if check_result.passes is not None and not check_result.passes.drafts:
        spec = replace(spec, drafter=None)
        spec = replace(spec, no_pair_reason=NoPair.NOT_EXACT, no_pair_detail=_ROUNDS_BY_WIDTH)
    target = make_target_context(
        model,
        spec,
        drafts=drafts,
        n_leaves=MAX_SIBLINGS if check_result.can_take_leaves and spec.drafter is not None else 0,
        cache_per_slot=check_result.passes is not None,
    )
    _check(target, model)
    drafter, reason, detail = _load_drafter(spec, target, on_progress)
    costs = calibrate(target, drafter, longest=longest)
    target_s, draft_step_s, _ = costs.measured()
    facts = EngineFacts(
        n_ctx=spec.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.vocabulary.n_vocab,
        target=target.memory(),
        drafter=drafter.memory() if drafter is not None else None,
        no_pair_reason=reason,
        no_pair_detail=detail,
        plain_tokens_per_s=1.0 / costs.target_s(1),
        costs=PassCosts(target_s=tuple(target_s.items()), draft_step_s=draft_step_s),
        exact=check_result.exactness,
        threshold=_threshold(spec, target, costs),
    )
    media = MediaCache(projector) if projector is not None else None
    return LoadedPair(target, model.vocabulary, drafter, media, costs, facts, check_result.passes)


def _check(backend: Backend, model: LlamaModel) -> None:
    try:
        is_finite = has_finite_logits(backend)
    except DecodeFailed as error:
        raise model.native_log.load_error(f"{model.path} cannot be run: {error}") from error
    if not is_finite:
        raise LoadFailed(
            f"{model.path} computes no numbers (NaN or infinity): its weights are damaged,"
            " or too large for the format of its cache"
        )


def _threshold(spec: EngineSpec, target: Backend, costs: CostModel) -> float | None:
    """Return the acceptance that drafting needs; None if nothing can be drafted."""
    limit, longest = target.rewind_limit, longest_draft(spec.max_draft)
    if limit == 0 or spec.no_pair_reason in {NoPair.DISABLED_BY_USER, NoPair.NOT_EXACT}:
        return None
    if spec.acceptance_threshold is not None:
        return spec.acceptance_threshold
    return costs.break_even(longest if limit is None else min(longest, limit))


def _load_projector(spec: EngineSpec, model: LlamaModel) -> LlamaProjector | None:
    if spec.projector is None:
        return None
    # Most models have no projector, and its libraries take 0.1 s to load.
    from specd.engine.llama.projector import LlamaProjector  # noqa: PLC0415

    return LlamaProjector(
        spec.projector,
        model,
        n_ctx=spec.n_ctx,
        n_threads=spec.n_threads,
        placement=DevicePlacement.of_target(spec),
        flash_attention=spec.flash_attention,
    )


def _load_drafter(
    spec: EngineSpec, target: Backend, on_progress: Callable[[float], None]
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
            model = load_model(spec.drafter, spec, placement, on_progress)
            cleanup.callback(model.close)
            drafter = make_drafter_context(model, spec)
            cleanup.callback(drafter.close)
            _check(drafter, model)
        except LoadFailed as error:
            log.warning("serving without a drafter: %s", error)
            no_room = isinstance(error, OutOfMemory)
            return None, NoPair.NO_VRAM if no_room else NoPair.LOAD_FAILED, str(error)
        cleanup.pop_all()
    return drafter, "", ""


def load_encoder(spec: EngineSpec, on_progress: Callable[[float], None]) -> LoadedEncoder:
    """Load an embedding model.  Raises LoadFailed if the model cannot embed."""
    model = _load_target(spec, on_progress)
    encoder = make_encoder(model, spec)
    facts = EngineFacts(
        n_ctx=encoder.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.vocabulary.n_vocab,
        target=encoder.memory(),
        no_pair_reason=spec.no_pair_reason or NoPair.EMBEDS,
        no_pair_detail=spec.no_pair_detail,
    )
    return LoadedEncoder(encoder, model.vocabulary, facts)


def _load_target(spec: EngineSpec, on_progress: Callable[[float], None]) -> LlamaModel:
    model = load_model(spec.weights, spec, DevicePlacement.of_target(spec), on_progress)
    for path in spec.adapters:
        model.adapt(path)
    return model


def load_model(
    path: str, spec: EngineSpec, placement: DevicePlacement, on_progress: Callable[[float], None]
) -> LlamaModel:
    native_log = library.start()
    native_log.begin()
    return LlamaModel(
        path,
        native_log,
        placement=placement,
        use_mmap=spec.use_mmap,
        use_mlock=spec.use_mlock,
        on_progress=on_progress,
    )


def make_encoder(model: LlamaModel, spec: EngineSpec) -> LlamaEncoder:
    """Create the context of an embedding model.  Raises LoadFailed."""
    return LlamaEncoder(
        model,
        # The model may have no positions beyond those of its training.
        n_ctx=min(spec.n_ctx, model.n_ctx_train or spec.n_ctx),
        n_batch=spec.n_batch,
        n_threads=spec.n_threads,
        flash_attention=spec.flash_attention,
        kv_cache_type=spec.kv_cache_type,
    )


def make_target_context(
    model: LlamaModel,
    spec: EngineSpec,
    *,
    drafts: bool,
    n_leaves: int = 0,
    cache_per_slot: bool = False,
) -> LlamaContext:
    """Create the context of a target.  Raises LoadFailed.

    drafts: whether the user allows drafts, so that the cache must take back rejected tokens.
    """
    longest = longest_draft(spec.max_draft)
    n_rewind = longest if drafts else 0
    return _make_context(
        model,
        spec,
        longest=longest,
        n_rewind=n_rewind,
        n_leaves=n_leaves,
        cache_per_slot=cache_per_slot,
    )


def make_drafter_context(model: LlamaModel, spec: EngineSpec) -> LlamaContext:
    """Create the context of a drafter.  Raises LoadFailed."""
    return _make_context(model, spec, n_ahead=longest_draft(spec.max_draft))


def _make_context(
    model: LlamaModel,
    spec: EngineSpec,
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
