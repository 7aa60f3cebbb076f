"""The objects of `/api/ps`, and of a model's pair in `/api/show`; key order is Ollama's.

Ollama's fields mean the same as in Ollama, and include the drafter's bytes.  All else is in
`specd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specd import core
from specd.api.go_format import expiry_time
from specd.api.interfaces import Library
from specd.api.ollama.models import Json, details_object
from specd.errors import SpecdError
from specd.pairs import LOCAL_STORE
from specd.scheduler import Resident
from specd.store import ModelDetails

#: Returns a sentence about the pull of a missing drafter, or "".
FetchStatus = Callable[[core.Pair], str]


def resident_details(library: Library, residents: Sequence[Resident]) -> Mapping[str, ModelDetails]:
    """Return name → details of the loaded models; a deleted model has few.  Reads files."""
    listed = {summary.name: summary.details for summary in library.list()}
    return {
        model.name: listed.get(model.name) or _unlisted_details(library, model)
        for model in (resident.model for resident in residents)
    }


def _unlisted_details(library: Library, model: core.ModelRef) -> ModelDetails:
    """Return the details of a model that is not listed: the demo, or a deleted model."""
    try:
        return library.show(model.name).summary.details
    except SpecdError:
        family = model.architecture
        return ModelDetails(format="gguf", family=family, families=(family,) if family else None)


def ps_object(
    residents: Sequence[Resident],
    details: Mapping[str, ModelDetails],
    now_ns: int,
    drafter_fetch_status: FetchStatus,
) -> Json:
    """Return the object of `/api/ps`.  details: from `resident_details`."""
    longest_first = sorted(residents, key=lambda resident: resident.expires_at, reverse=True)
    return {
        "models": [
            _resident(resident, details[resident.model.name], now_ns, drafter_fetch_status)
            for resident in longest_first
        ]
    }


def _resident(
    resident: Resident, details: ModelDetails, now_ns: int, drafter_fetch_status: FetchStatus
) -> Json:
    facts, model = resident.facts, resident.model
    parts = [facts.target, *([facts.drafter] if facts.drafter else [])]
    return {
        "name": model.name,
        "model": model.name,
        "size": sum(part.total_bytes for part in parts),
        "digest": model.digest,
        "details": details_object(details),
        "expires_at": expiry_time(resident.expires_at, now_ns),
        "size_vram": sum(part.vram_bytes for part in parts),
        "context_length": facts.n_ctx,
        "specd": _specd(resident, drafter_fetch_status),
    }


def _specd(resident: Resident, drafter_fetch_status: FetchStatus) -> Json:
    """Return devices of target and drafter and the pair's results, or why there is no drafter."""
    facts, model_stats = resident.facts, resident.model_stats
    drafter = _drafter(resident)
    reason, detail = _paused_reason(resident) if drafter else _no_drafter_reason(resident)
    detail = _with_fetch_status(resident.pair, reason, detail, drafter_fetch_status)
    return {
        "target": _memory(facts.target),
        "drafter": drafter,
        "pair_source": drafter["pair_source"] if drafter else None,
        "state": _state(resident),
        "reason": reason,
        "detail": detail,
        "gain": None if model_stats.gain is None else round(model_stats.gain, 4),
        "requests": model_stats.n_requests,
        "draft_n": model_stats.draft_n,
        "draft_n_accepted": model_stats.draft_n_accepted,
        "acceptance_rate": round(model_stats.acceptance_rate, 4),
        **_threshold(resident),
        "device": facts.target.device,
        "slots": resident.spec.n_slots,
        "plain_tokens_per_s": round(facts.plain_tokens_per_s, 2),
        "exact": exact_object(resident),
    }


def _threshold(resident: Resident | None) -> Json:
    """Return which share of the drafts must be accepted, and whether the user set it."""
    known = resident.threshold if resident is not None else None
    if resident is None or known is None:
        return {"threshold": None, "threshold_source": None}
    is_set = resident.spec.acceptance_threshold is not None
    return {
        "threshold": round(known, 4),
        "threshold_source": "setting" if is_set else "measured",
    }


def exact_object(resident: Resident | None) -> Json | None:
    """Return which conditions cannot change the text for a seed; None where not known."""
    found = resident.facts.exact if resident is not None else None
    if found is None:
        return None
    return {
        "speculation": found.speculation,
        "parallel": found.parallel,
        "prompt_cache": found.prompt_cache,
        "enforced": list(found.enforced),
    }


def _drafter(resident: Resident) -> Json | None:
    memory, spec, pair = resident.facts.drafter, resident.spec, resident.pair
    if memory is None:
        return None
    found = pair.drafter
    return {
        "name": found.name if found else spec.drafter_name,
        "pair_source": found.source if found else spec.pair_source,
        "rule": pair.rule,
        **_memory(memory),
    }


def _memory(memory: core.ModelMemory) -> Json:
    return {
        "device": memory.device,
        "size": memory.total_bytes,
        "size_vram": memory.vram_bytes,
        "size_weights": memory.weights_bytes,
        "size_cache": memory.cache_bytes,
        "size_scratch": memory.scratch_bytes,
        "devices": dict(memory.by_device),
    }


def _state(resident: Resident) -> str | None:
    """Return the state of the newest answer; before the first, "off" or None for undecided."""
    if resident.model_stats.last is not None:
        return resident.model_stats.last.state.value
    switched_off = resident.spec.no_pair_reason == core.NoPair.DISABLED_BY_USER
    return core.SpeculationState.OFF.value if resident.spec.embeds or switched_off else None


def _paused_reason(resident: Resident) -> tuple[str, str]:
    last = resident.model_stats.last
    return (last.reason, last.detail) if last is not None else ("", "")


def _no_drafter_reason(resident: Resident) -> tuple[str, str]:
    """Return the reason and details; the load's come first, as it may have dropped the drafter."""
    facts, spec, pair = resident.facts, resident.spec, resident.pair
    if facts.no_pair_reason:
        reason, detail = facts.no_pair_reason, facts.no_pair_detail
    elif spec.no_pair_reason:
        reason, detail = spec.no_pair_reason, spec.no_pair_detail
    else:
        reason, detail = pair.reason or "", pair.detail
    return str(reason), detail


def pair_object(
    pair: core.Pair, drafter_fetch_status: FetchStatus, resident: Resident | None
) -> Json:
    """Return the pair that a load would use now.  resident: the model, if it is loaded."""
    return {
        "drafter": pair.drafter.name if pair.drafter else None,
        "pair_source": pair.drafter.source if pair.drafter else None,
        "rule": pair.rule,
        "reason": pair.reason.value if pair.reason else "",
        "detail": _with_fetch_status(pair, pair.reason or "", pair.detail, drafter_fetch_status),
        "expected": dict(pair.expected),
        "pull": list(pair.pull),
        **_threshold(resident),
        "exact": exact_object(resident),
    }


def _with_fetch_status(
    pair: core.Pair, reason: str, detail: str, drafter_fetch_status: FetchStatus
) -> str:
    """Append the status of the pull if the drafter is missing or a local one replaces it."""
    is_local_drafter = pair.drafter is not None and pair.drafter.source == LOCAL_STORE
    if is_local_drafter or reason == core.NoPair.NOT_FOUND:
        return " ".join(filter(None, (detail, drafter_fetch_status(pair))))
    return detail
