"""Build the spec of an engine from the pair, the options and the settings."""

from __future__ import annotations

from specd import core, errors
from specd.options import Options
from specd.settings import Settings

#: Bounds that no model's layers and no machine's GPUs reach.
_MAX_LAYERS, _MAX_GPUS = 9999, 1024


def drafters(settings: Settings) -> tuple[core.DrafterKind, ...]:
    """Return the kinds of drafters that a request may use."""
    if not settings.speculative_decode:
        return ()
    lookup = (core.DrafterKind.LOOKUP,) if settings.prompt_lookup else ()
    return (core.DrafterKind.MODEL, *lookup)


def engine_spec(
    target: core.LocalModel,
    pair: core.Pair,
    options: Options,
    settings: Settings,
    *,
    embeds: bool = False,
) -> core.EngineSpec:
    """Return the spec; the scheduler fills in automatic values (context, threads).

    embeds: the request asks for embeddings; the model may also generate text.
    Raises InvalidOption.
    """
    embeds = embeds or target.is_embedding_only
    drafter = None if embeds else pair.drafter
    reason, detail = _no_drafter_reason(pair, embeds=embeds)
    if options.num_batch < 1:
        raise errors.InvalidOption('option "num_batch" must be at least 1')
    if options.main_gpu is not None and options.main_gpu >= _MAX_GPUS:
        raise errors.InvalidOption('option "main_gpu" must be the number of a GPU')
    return core.EngineSpec(
        weights=str(target.weights),
        drafter=str(drafter.weights) if drafter else None,
        drafter_name=drafter.name if drafter else "",
        pair_source=drafter.source if drafter else "",
        no_pair_reason=reason,
        no_pair_detail=detail,
        n_ctx=requested_ctx(target, options),
        # Ollama's rule; simultaneous texts share passes in any case.
        n_slots=1 if embeds else settings.num_parallel,
        n_batch=options.num_batch,
        n_gpu_layers=min(max(options.num_gpu, -1), _MAX_LAYERS),
        main_gpu=None if options.main_gpu is None else max(options.main_gpu, -1),
        n_threads=options.num_thread,
        use_mmap=options.use_mmap,
        flash_attention=settings.flash_attention,
        kv_cache_type=settings.kv_cache_type,
        acceptance_threshold=settings.acceptance_threshold,
        trace_dir=str(settings.trace_dir or ""),
        adapters=tuple(str(path) for path in target.adapters),
        projector=str(target.projector) if target.projector else None,
        embeds=embeds,
        use_mlock=settings.mlock,
        max_draft=drafter.max_draft if drafter else None,
        exact=settings.exact and not embeds,
    )


def requested_ctx(target: core.ModelRef, options: Options) -> int:
    """Return the context, in tokens, that the model is to be loaded with; 0 is automatic."""
    if not options.num_ctx:
        return 0
    return max(options.num_ctx, core.smallest_ctx(sees=target.reads_images))


def _no_drafter_reason(pair: core.Pair, *, embeds: bool) -> tuple[str, str]:
    """Return the reason for no drafter and a sentence; a chat model may be loaded to embed."""
    if not embeds or pair.reason in {core.NoPair.EMBEDS, core.NoPair.DISABLED_BY_USER}:
        return pair.reason or "", pair.detail
    name = pair.target.name
    return core.NoPair.EMBEDS, f"{name} is loaded to give vectors, so there is nothing to draft."
