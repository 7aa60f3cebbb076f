"""Why a drafter was given up, in a sentence: what it needs, what is left, what would help."""

from __future__ import annotations

from collections import Counter
from typing import Final

from specd.placement.planner import Plan, Planner

_GIB: Final = 2**30
#: Nobody is told to chat with less than that.
_LEAST_CTX: Final = 2048
#: What a cache saves as q8_0: that is 34 bytes for 32 numbers.
_SAVED: Final = {"f32": 1 - 34 / 128, "f16": 1 - 34 / 64, "bf16": 1 - 34 / 64}


def why_no_drafter(planner: Planner, found: Plan) -> str:
    name = planner.request.spec.drafter_name or "the drafter"
    places = planner.draft_places(on_devices=found.layout.n_layers > 0)
    if not places:
        return f"the device that SPECD_DRAFT_DEVICE names for {name} is not there any more"
    n_blocks = len(planner.target(found.n_ctx).blocks)
    n_there = found.layout.n_layers - 1  # the output is one, too
    if found.fits and 0 <= n_there < n_blocks:
        means = _means(planner, found) or ["a smaller quantization of the model"]
        return (
            f"only {n_there} of the model's {n_blocks} layers fit on {_names(planner, found)}, and"
            f" {name} would take the room of some of them: {' or '.join(means)} would help"
        )
    taken = planner.taken(found.layout, found.n_ctx, drafts=False)
    left = {
        at: (planner.ram if at is None else planner.rooms[at]) - taken.get(at, 0) for at in places
    }
    most = max(places, key=lambda at: left[at])
    needed = planner.draft_bytes(found.n_ctx, most)
    means = _means(planner, found, needed - left[most])
    return (
        f"{name} needs {needed / _GIB:.1f} GiB, and {max(left[most], 0) / _GIB:.1f} GiB may still"
        f" be taken of {_name(planner, most)}{_would(means)}"
    )


def _would(means: list[str]) -> str:
    return f": {' or '.join(means)} would make room" if means else ""


def _means(planner: Planner, found: Plan, missing: int | None = None) -> list[str]:
    """What would make room for both: a smaller context, or a cache of smaller numbers."""
    spec = planner.request.spec
    means: list[str] = []
    place = planner.on_devices if found.layout.layers else planner.in_main_memory
    n_ctx = found.n_ctx // 2
    while n_ctx >= _LEAST_CTX and not means:
        if place(n_ctx, True):
            means.append(f"a num_ctx of {n_ctx}")
        n_ctx //= 2
    cache = planner.target(found.n_ctx).cache_bytes
    if planner.drafter is not None:
        cache += planner.drafter(found.n_ctx).cache_bytes
    saved = 0.0 if spec.flash_attention is False else _SAVED.get(spec.kv_cache_type, 0.0)
    if missing is not None and cache * saved >= missing:
        means.append("OLLAMA_KV_CACHE_TYPE=q8_0")
    return means


def _names(planner: Planner, found: Plan) -> str:
    there = Counter(planner.machine.devices[at].name for at in found.layout.devices)
    return " and ".join(name if n == 1 else f"{n} × {name}" for name, n in there.items())


def _name(planner: Planner, at: int | None) -> str:
    return "main memory" if at is None else planner.machine.devices[at].name
