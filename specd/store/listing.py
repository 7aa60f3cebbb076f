"""Descriptions of stored models: a list entry, and the details of `/api/show`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from specd import core
from specd.store.gguf import GgufHeader, LongArray, TensorInfo, Value
from specd.store.gguf_metadata import GgufMetadata, format_count
from specd.store.modelfile import DEFAULT_TEMPLATE, modelfile_text, parameters_text
from specd.store.stored_model import StoredModel
from specd.store.templating import capabilities

_HIDDEN = frozenset({"general.name", "tokenizer.chat_template"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """Ollama's `details` of a model; a length of 0 means unknown."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: tuple[str, ...] | None = None
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int = 0
    embedding_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """List entry of a model.

    digest: 64 hex digits.  modified_at: aware, in local time.
    capabilities: empty if the weights cannot be read.
    """

    name: str
    digest: str
    size_bytes: int
    modified_at: datetime
    details: ModelDetails
    capabilities: tuple[str, ...] = ()
    remote_model: str = ""
    remote_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Details of a model, as `/api/show` returns them.

    model_info: GGUF keys and values, JSON-ready; long arrays are None unless verbose.
    """

    summary: ModelSummary
    license: str
    modelfile: str
    parameters: str
    template: str
    system: str
    messages: tuple[core.Message, ...]
    model_info: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]
    projector_info: Mapping[str, object] | None
    requires: str

    @classmethod
    def of_upstream(cls, summary: ModelSummary) -> ModelInfo:
        """Return what is known of a model that another server holds."""
        return cls(
            summary=summary,
            license="",
            modelfile="",
            parameters="",
            template="",
            system="",
            messages=(),
            model_info={},
            tensors=(),
            projector_info=None,
            requires="",
        )


def summarize(
    stored: StoredModel,
    facts: GgufMetadata | None,
    go_template: str | None,
    chosen: core.Templating,
    *,
    has_sound: bool = False,
) -> ModelSummary:
    """Return the list entry of a model.

    facts: None if the weights cannot be read.  chosen: the template in use.
    has_sound: whether a projector encodes sounds.
    """
    config = stored.config
    can: tuple[str, ...] = tuple(config.capabilities or ())
    if facts is not None:
        can = capabilities(
            facts,
            config,
            go_template=go_template,
            chosen=chosen,
            has_projector=bool(stored.paths("projector")),
            has_sound=has_sound,
        )
    return ModelSummary(
        name=stored.name.short,
        digest=stored.digest,
        size_bytes=stored.size_bytes,
        modified_at=stored.modified_at,
        details=_details(stored, facts),
        capabilities=can,
        remote_model=config.remote_model,
        remote_host=config.remote_host,
    )


def describe(
    stored: StoredModel,
    summary: ModelSummary,
    header: GgufHeader,
    projector: GgufHeader | None,
    chosen: core.Templating,
    *,
    verbose: bool,
) -> ModelInfo:
    """Return the details of a model.  Raises StoreError if a text layer is damaged."""
    template = chosen.choose_template(header.text("tokenizer.chat_template"), stored.template)
    return ModelInfo(
        summary=summary,
        license="\n".join(stored.licenses),
        modelfile=modelfile_text(stored),
        parameters=parameters_text(stored.parameters),
        template=template or DEFAULT_TEMPLATE,
        system=stored.system,
        messages=stored.messages,
        model_info=_model_info(header, verbose=verbose),
        tensors=header.tensors,
        projector_info=None if projector is None else _model_info(projector, verbose=verbose),
        requires=stored.config.requires,
    )


def _details(stored: StoredModel, facts: GgufMetadata | None) -> ModelDetails:
    """Return the details from the config; the GGUF supplies what the config lacks."""
    config, families = stored.config, stored.config.model_families
    return ModelDetails(
        parent_model=stored.parent,
        format=config.model_format,
        family=config.model_family or (facts.architecture if facts else ""),
        families=None if families is None else tuple(families),
        parameter_size=config.model_type or (format_count(facts.n_parameters) if facts else ""),
        quantization_level=config.file_type or (facts.file_type if facts else ""),
        context_length=config.context_length or (facts.n_ctx_train if facts else 0),
        embedding_length=config.embedding_length or (facts.n_embd if facts else 0),
    )


def _model_info(header: GgufHeader, *, verbose: bool) -> dict[str, object]:
    info = {
        key: _json_ready(value, verbose=verbose)
        for key, value in header.values.items()
        if key not in _HIDDEN
    }
    info.setdefault("general.parameter_count", header.parameter_count)
    return info


def _json_ready(value: Value, *, verbose: bool) -> object:
    """Return the value for JSON, in which a float that is not finite becomes null."""
    match value:
        case LongArray():
            return [_json_ready(v, verbose=verbose) for v in value.values()] if verbose else None
        case tuple():
            return [_json_ready(item, verbose=verbose) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
