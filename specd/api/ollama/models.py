"""What `/api/tags`, `/api/show` and `/api/ps` say of models; key order is Ollama's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specd import core
from specd.api.ports import Library
from specd.api.wire import expiry_time, local_time, present
from specd.errors import SpecdError
from specd.scheduler import Resident
from specd.store import ModelDetails, ModelInfo, ModelSummary

Json = dict[str, object]


def tags_object(models: Sequence[ModelSummary]) -> Json:
    return {"models": [_tag(model) for model in models]}


def _tag(model: ModelSummary) -> Json:
    return (
        {"name": model.name, "model": model.name}
        | present(remote_model=model.remote_model, remote_host=model.remote_host)
        | {
            "modified_at": local_time(model.modified_at),
            "size": model.size_bytes,
            "digest": model.digest,
            "details": _details(model.details),
        }
        | present(capabilities=list(model.capabilities))
    )


def _details(details: ModelDetails) -> Json:
    return {
        "parent_model": details.parent_model,
        "format": details.format,
        "family": details.family,
        "families": None if details.families is None else list(details.families),
        "parameter_size": details.parameter_size,
        "quantization_level": details.quantization_level,
    } | present(context_length=details.context_length, embedding_length=details.embedding_length)


def show_object(info: ModelInfo, *, system: str = "", basename: str = "") -> Json:
    """system: the request's, shown in place of the model's.

    basename: replaces the model's own for clients that look their model up by it.
    """
    model_info = dict(info.model_info)
    if basename:
        model_info["general.basename"] = basename
    return (
        present(
            license=info.license,
            modelfile=info.modelfile,
            parameters=info.parameters,
            template=info.template,
            system=system or info.system,
        )
        | {"details": _details(info.summary.details)}
        | present(messages=[_message(message) for message in info.messages])
        | present(remote_model=info.summary.remote_model, remote_host=info.summary.remote_host)
        | {"model_info": model_info}
        | present(
            projector_info=dict(info.projector_info or {}),
            tensors=[
                {"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape)}
                for tensor in info.tensors
            ],
            capabilities=list(info.summary.capabilities),
        )
        | {"modified_at": local_time(info.summary.modified_at)}
        | present(requires=info.requires)
    )


def _message(message: core.Message) -> Json:
    return {"role": message.role, "content": message.content}


def resident_details(library: Library, residents: Sequence[Resident]) -> Mapping[str, ModelDetails]:
    """By the model's name; of one deleted since the few that are known.  Reads files."""
    listed = {summary.name: summary.details for summary in library.list()}
    return {
        model.name: listed.get(model.name) or _unlisted_details(library, model)
        for model in (resident.model for resident in residents)
    }


def _unlisted_details(library: Library, model: core.ModelRef) -> ModelDetails:
    """The demo answers by its name where the list leaves it out."""
    try:
        return library.show(model.name).summary.details
    except SpecdError:
        family = model.architecture
        return ModelDetails(format="gguf", family=family, families=(family,) if family else None)


def ps_object(
    residents: Sequence[Resident], details: Mapping[str, ModelDetails], now_ns: int
) -> Json:
    """details: as `resident_details` finds them."""
    longest_first = sorted(residents, key=lambda resident: resident.expires_at, reverse=True)
    return {
        "models": [
            _resident(resident, details[resident.model.name], now_ns) for resident in longest_first
        ]
    }


def _resident(resident: Resident, details: ModelDetails, now_ns: int) -> Json:
    facts, model = resident.facts, resident.model
    parts = [facts.target, *([facts.drafter] if facts.drafter else [])]
    return {
        "name": model.name,
        "model": model.name,
        "size": sum(part.total_bytes for part in parts),
        "digest": model.digest,
        "details": _details(details),
        "expires_at": expiry_time(resident.expires_at, now_ns),
        "size_vram": sum(part.vram_bytes for part in parts),
        "context_length": facts.n_ctx,
        "specd": _specd(resident),
    }


def _specd(resident: Resident) -> Json:
    """Which drafter is loaded beside the model, or why there is none."""
    facts, pair = resident.facts, resident.pair
    drafter: Json | None = None
    if facts.drafter is not None:
        drafter = {
            "name": pair.drafter.name if pair.drafter else resident.spec.drafter_name,
            "size": facts.drafter.total_bytes,
            "size_vram": facts.drafter.vram_bytes,
            "device": facts.drafter.device,
            "pair_source": pair.drafter.source if pair.drafter else resident.spec.pair_source,
        }
    return {
        "drafter": drafter,
        "reason": pair.reason.value if pair.reason else facts.no_pair_reason,
        "detail": pair.detail if pair.reason else facts.no_pair_detail,
        "device": facts.target.device,
        "slots": resident.spec.n_slots,
        "plain_tokens_per_s": round(facts.plain_tokens_per_s, 2),
    }
