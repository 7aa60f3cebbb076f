"""Describe in a sentence what does not fit: what it needs, what is free, what would help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from specd.core import GiveUp, PlacementRequest
from specd.placement.estimate import MIB, Footprint
from specd.placement.layout import Layout
from specd.placement.planner import LayoutPlan, Model, Planner

_GIB: Final = 2**30
#: The shortest context that is suggested as a remedy.
_LEAST_CTX: Final = 2048
#: Share of a cache that the format q8_0 saves: it takes 34 bytes for 32 numbers.
_SAVED: Final = {"f32": 1 - 34 / 128, "f16": 1 - 34 / 64, "bf16": 1 - 34 / 64}


def size(n_bytes: int) -> str:
    """Return the size in GiB or MiB, such as "1.5 GiB"."""
    n_bytes = max(n_bytes, 0)
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / MIB:.0f} MiB"


def short_name(weights: str) -> str:
    """Return the file's name; a blob's digest is cut to 12 digits."""
    return re.sub(r"^(sha256-\w{12})\w+$", r"\1", Path(weights).name)


def name_of(request: PlacementRequest) -> str:
    """Return the model's name, or its file's if it has none."""
    return request.name or short_name(request.spec.weights)


def describe_shortage(planner: Planner, tried: LayoutPlan | None) -> str:
    """Return what the model needs and what is free.

    tried: the plan with which it is loaded anyway, None if it is not loaded.
    """
    request, machine = planner.request, planner.machine
    n_ctx = request.spec.n_ctx if tried is None else tried.n_ctx
    drafts = request.give_up is GiveUp.NOTHING and not planner.is_pair_too_large
    pair = f" with {request.spec.drafter_name or 'its drafter'}" if drafts else ""
    needed, places = planner.needed_bytes(n_ctx, drafts), planner.allowed
    if tried is not None and not tried.layout.layers:
        needed, places = planner.used_bytes(Layout(), n_ctx, False)[None], ()
    memories = [
        (machine.devices[at].free_bytes, planner.capacities[at], _on(planner, at)) for at in places
    ] or [(machine.ram_bytes, planner.ram, "in main memory")]
    if needed > sum(free for free, _, _ in memories):
        there = [f"{size(free)} {where}" for free, _, where in memories]
        left = f"free are {', '.join(there)}"
    else:
        there = [
            f"{size(capacity)} of {size(free)} free {where}" for free, capacity, where in memories
        ]
        left = f"it may take {', '.join(there)}"
    return f"{name_of(request)}{pair} needs about {size(needed)}, and {left}"


def _on(planner: Planner, at: int) -> str:
    device = planner.machine.devices[at]
    return f"on {device.name} ({device.index})"


def describe_missing_drafter(planner: Planner, found: LayoutPlan) -> str:
    """Return why the plan has no drafter, and what would help, as the end of a sentence."""
    name = planner.request.spec.drafter_name or "the drafter"
    places = planner.draft_places(on_devices=found.layout.n_layers > 0)
    if not places:
        return f"the device that SPECD_DRAFT_DEVICE names for {name} is gone"
    n_blocks = len(planner.target(found.n_ctx).blocks)
    n_there = found.layout.n_layers - 1  # the output is one, too
    if found.fits and 0 <= n_there < n_blocks:
        remedies = _remedies(planner, found) or ["a smaller quantization of the model"]
        return (
            f"only {n_there} of the model's {n_blocks} layers fit on {_names(planner, found)}, and"
            f" {name} would displace some of them: {' or '.join(remedies)} would help"
        )
    used_bytes = planner.used_bytes(found.layout, found.n_ctx, drafts=False)
    left = {
        at: (planner.ram if at is None else planner.capacities[at]) - used_bytes.get(at, 0)
        for at in places
    }
    most = max(places, key=lambda at: left[at])
    needed = planner.draft_bytes(found.n_ctx, most)
    remedies = _remedies(planner, found)
    return (
        f"{name} needs {size(needed)}, and {_name(planner, most)} has {size(left[most])} left for"
        f" it{_remedy_clause(remedies)}"
    )


def _remedy_clause(remedies: list[str]) -> str:
    return f": {' or '.join(remedies)} would help" if remedies else ""


def _remedies(planner: Planner, found: LayoutPlan) -> list[str]:
    """Return the changes with which both fit, found by planning again: the least of each kind."""
    spec, n_ctx = planner.request.spec, found.n_ctx
    place = _place(planner, found)
    lengths = (n for n in _halves(n_ctx, _LEAST_CTX) if place(n, True))
    # A slot takes about as much memory as its tokens.
    slots = (n for n in _halves(spec.n_slots, 1) if place(n_ctx * n // spec.n_slots, True))
    remedies = [f"a num_ctx of {n}" for n in islice(lengths, 1)]
    remedies += [f"OLLAMA_NUM_PARALLEL={n}" for n in islice(slots, 1)]
    smaller = _with_smaller_caches(planner)
    if smaller is not None and _place(smaller, found)(n_ctx, True):
        remedies.append("OLLAMA_KV_CACHE_TYPE=q8_0")
    return remedies


def _place(planner: Planner, found: LayoutPlan) -> Callable[[int, bool], Layout | None]:
    return planner.on_devices if found.layout.layers else planner.in_main_memory


def _halves(n: int, least: int) -> Iterator[int]:
    while (n := n // 2) >= least:
        yield n


def _with_smaller_caches(planner: Planner) -> Planner | None:
    """Return a planner with caches of format q8_0; None if that is not possible or not smaller."""
    spec = planner.request.spec
    saved = 0.0 if spec.flash_attention is False else _SAVED.get(spec.kv_cache_type, 0.0)
    if not saved or planner.drafter is None:
        return None

    def smaller(at: Callable[[int], Footprint]) -> Model:
        return Model(at=lambda n_ctx: _with_smaller_cache(at(n_ctx), at(n_ctx // 2), saved))

    models = smaller(planner.target), smaller(planner.drafter)
    return Planner(planner.request, *models, planner.machine, planner.placement_config)


def _with_smaller_cache(whole: Footprint, half: Footprint, saved: float) -> Footprint:
    """Return the footprint with the part of the cache that grows with the context made smaller.

    half: the footprint at half the context.  The rest is recurrent states and sliding windows.
    """
    blocks = []
    for block, shorter in zip(whole.blocks, half.blocks, strict=True):
        grows = min(2 * (block.cache_bytes - shorter.cache_bytes), block.cache_bytes)
        blocks.append(replace(block, cache_bytes=block.cache_bytes - int(saved * grows)))
    return replace(whole, blocks=tuple(blocks))


def _names(planner: Planner, found: LayoutPlan) -> str:
    there = Counter(planner.machine.devices[at].name for at in found.layout.devices)
    return " and ".join(name if n == 1 else f"{n} × {name}" for name, n in there.items())


def _name(planner: Planner, at: int | None) -> str:
    return "main memory" if at is None else planner.machine.devices[at].name
