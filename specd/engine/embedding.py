"""Loading of an embedding model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specd.core import EngineFacts, EngineSpec, NoPair
from specd.engine.llama import library
from specd.engine.llama.device_placement import DevicePlacement
from specd.engine.llama.encoder import LlamaEncoder
from specd.engine.llama.model import LlamaVocabulary
from specd.engine.pair import load_model


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    encoder: LlamaEncoder
    vocabulary: LlamaVocabulary
    facts: EngineFacts


def load(spec: EngineSpec, on_progress: Callable[[float], None]) -> LoadedEncoder:
    """Load an embedding model.  Raises LoadFailed if the model cannot embed."""
    native_log = library.start()
    model = load_model(spec.weights, spec, DevicePlacement.of_target(spec), native_log, on_progress)
    for path in spec.adapters:
        model.adapt(path)
    encoder = LlamaEncoder(
        model,
        native_log,
        # The model may have no positions beyond those of its training.
        n_ctx=min(spec.n_ctx, model.n_ctx_train or spec.n_ctx),
        n_batch=spec.n_batch,
        n_threads=spec.n_threads,
        flash_attention=spec.flash_attention,
        kv_cache_type=spec.kv_cache_type,
    )
    facts = EngineFacts(
        n_ctx=encoder.n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_vocab=model.vocabulary.n_vocab,
        target=encoder.memory(),
        no_pair_reason=spec.no_pair_reason or NoPair.EMBEDS,
        no_pair_detail=spec.no_pair_detail,
    )
    return LoadedEncoder(encoder, model.vocabulary, facts)
