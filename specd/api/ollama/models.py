"""The objects of `/api/tags` and `/api/show`; key order is Ollama's."""

from __future__ import annotations

from collections.abc import Sequence

from specd import core
from specd.api.go_format import local_time, omit_empty
from specd.store import ModelDetails, ModelInfo, ModelSummary

Json = dict[str, object]


def tags_object(models: Sequence[ModelSummary]) -> Json:
    return {"models": [_tag(model) for model in models]}


def _tag(model: ModelSummary) -> Json:
    return (
        {"name": model.name, "model": model.name}
        | omit_empty(remote_model=model.remote_model, remote_host=model.remote_host)
        | {
            "modified_at": local_time(model.modified_at),
            "size": model.size_bytes,
            "digest": model.digest,
            "details": details_object(model.details),
        }
        | omit_empty(capabilities=list(model.capabilities))
    )


def details_object(details: ModelDetails) -> Json:
    return {
        "parent_model": details.parent_model,
        "format": details.format,
        "family": details.family,
        "families": None if details.families is None else list(details.families),
        "parameter_size": details.parameter_size,
        "quantization_level": details.quantization_level,
    } | omit_empty(context_length=details.context_length, embedding_length=details.embedding_length)


def show_object(
    info: ModelInfo, *, system: str = "", basename: str = "", pair: Json | None = None
) -> Json:
    """Return the object of `/api/show`.

    system: the request's; it replaces the model's.  basename: replaces the model's own, for clients
    that look up their model by it.  pair: specd's object; None for a remote model.
    """
    model_info = dict(info.model_info)
    if basename:
        model_info["general.basename"] = basename
    return (
        omit_empty(
            license=info.license,
            modelfile=info.modelfile,
            parameters=info.parameters,
            template=info.template,
            system=system or info.system,
        )
        | {"details": details_object(info.summary.details)}
        | omit_empty(messages=[_message(message) for message in info.messages])
        | omit_empty(remote_model=info.summary.remote_model, remote_host=info.summary.remote_host)
        | {"model_info": model_info}
        | omit_empty(
            projector_info=dict(info.projector_info or {}),
            tensors=[
                {"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape)}
                for tensor in info.tensors
            ],
            capabilities=list(info.summary.capabilities),
        )
        | {"modified_at": local_time(info.summary.modified_at)}
        | omit_empty(requires=info.requires, specd=pair)
    )


def _message(message: core.Message) -> Json:
    return {"role": message.role, "content": message.content}
