"""The way from the best place for target and drafter to the least bad one, in bytes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import Final

from specd import core, errors
from specd.placement.backend_devices import DeviceKind
from specd.placement.config import AUTO, ON_CPU, PlacementConfig
from specd.placement.devices import Device
from specd.placement.estimate import Footprint
from specd.placement.layer_split import split_layers
from specd.placement.layout import Layout, copies_bytes, layer_bytes, streamed_weights_bytes

MIB: Final = 2**20
#: Of main memory an engine may take so much: an estimate may be a little wrong (contract 6).
SHARE: Final = 0.8
#: Of a GPU so much stays free, within bounds: drivers, desktops and cuBLAS want their part.
_RESERVE, _MIN_RESERVE, _MOST_RESERVE = 0.04, 384 * MIB, 1024 * MIB
#: What a process takes on a GPU before anything lies there, where that is not known better.
PROCESS_BYTES: Final = 400 * MIB
#: Every time memory was refused, all that is needed is thought to be so much larger.
_REFUSED = 0.25
#: Automatic contexts are a multiple of that, or the least one.
_CTX_STEP = 1024
#: Where the context has to shrink anyway, so much of it is worth a drafter.
_MIN_CTX_SHARE = 1 / 3
#: Beyond so many GPUs not all ways to choose some of them are tried.
_MAX_LISTED_DEVICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """at: what it takes with so many tokens per slot.

    is_mapped: its weights lie in main memory anyway, for another engine.
    """

    at: Callable[[int], Footprint]
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """ram_bytes: main memory that nobody uses.  total_ram_bytes: all of it.

    process_bytes: by device, where it was measured.

    are_all: False where llama.cpp may find devices that nobody knows of.
    """

    devices: tuple[Device, ...]
    ram_bytes: int
    total_ram_bytes: int
    is_complete: bool = True
    process_bytes: Mapping[str, int] = field(default_factory=dict)

    def process_bytes_on(self, device: Device) -> int:
        return self.process_bytes.get(device.id, PROCESS_BYTES)

    def with_all_free(self) -> MachineMemory:
        """The same, where nobody else uses any memory."""
        devices = (replace(d, free_bytes=max(d.total_bytes, d.free_bytes)) for d in self.devices)
        ram_bytes = max(self.total_ram_bytes, self.ram_bytes)
        return replace(self, devices=tuple(devices), ram_bytes=ram_bytes)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """fits: False where it is only tried, for want of anything better."""

    layout: Layout
    n_ctx: int
    drafts: bool
    fits: bool = True


class Planner:
    """One request's way from the best placement to the least bad one."""

    def __init__(
        self,
        request: core.PlacementRequest,
        target: Model,
        drafter: Model | None,
        machine: MachineMemory,
        placement_config: PlacementConfig,
    ) -> None:
        """Raises InvalidOption where the caller names a GPU that is not there."""
        self.request = request
        self.machine = machine
        self.placement_config = placement_config
        self.target = cache(target.at)
        self.drafter = cache(drafter.at) if drafter is not None else None
        self._mapped = target.is_mapped, drafter is not None and drafter.is_mapped
        smaller_capacity = 1 + _REFUSED * request.n_refusals
        self.ram = int(SHARE * machine.ram_bytes / smaller_capacity)
        self.capacities = [
            int(self._capacity(device) / smaller_capacity) for device in machine.devices
        ]
        #: Where a layer would have to go otherwise: only what nobody can do without stays free.
        self.max_capacities = [
            int(self._capacity(device, most=_MIN_RESERVE) / smaller_capacity)
            for device in machine.devices
        ]
        self._targets = _allowed(request.spec, machine.devices)

    def _capacity(self, device: Device, most: int = _MOST_RESERVE) -> int:
        """Bytes that the models of one process may take there.  most: of it that stays free."""
        reserve = min(max(int(_RESERVE * device.total_bytes), _MIN_RESERVE), most)
        spared = (
            self.placement_config.overhead_bytes + reserve + self.machine.process_bytes_on(device)
        )
        return max(min(device.free_bytes, device.total_bytes) - spared, 0)

    # ----------------------------------------------------------------------- what is given up

    def plan(self) -> LayoutPlan | None:
        """None where somebody has to leave first."""
        spec, least = self.request.spec, self.request.min_ctx
        anything = self.request.give_up is core.GiveUp.ANYTHING
        if self._targets:
            if (plan := self._next_best(self.on_devices)) or not anything:
                return plan
            if plan := self._fill_devices(least):
                return plan
            if spec.n_gpu_layers > 0:  # the caller's word
                return LayoutPlan(self._forced_layers(least), least, drafts=False, fits=False)
            if plan := self._partial_offload(least):
                return plan
        if (plan := self._next_best(self.in_main_memory)) or not anything:
            return plan
        return LayoutPlan(Layout(), least, drafts=False, fits=False)

    def _next_best(self, place: Callable[[int, bool], Layout | None]) -> LayoutPlan | None:
        """Nothing is given up; or the drafter; or context, and the drafter where that is in vain.

        Nobody else has to leave for a drafter that would find no room even then.
        place: where all that is left lies, by tokens per slot and whether there is a drafter.
        """
        give_up, n_ctx = self.request.give_up, self.request.spec.n_ctx
        # A device for drafters that is lost is no reason to send anybody away.
        drafts = self.drafter is not None and bool(self.draft_places(on_devices=True))
        if layout := place(n_ctx, drafts):
            return LayoutPlan(layout, n_ctx, drafts)
        may_do_without = drafts and (give_up >= core.GiveUp.DRAFTER or self.is_pair_too_large)
        if may_do_without and (layout := place(n_ctx, False)):
            return LayoutPlan(layout, n_ctx, drafts=False)
        if give_up is not core.GiveUp.ANYTHING:
            return None
        if (alone := self._longest(place, drafts=False)) is None or not drafts:
            return alone
        pair = self._longest(place, drafts=True)
        if pair is not None and pair.n_ctx >= (1 - _MIN_CTX_SHARE) * alone.n_ctx:
            return pair
        return alone

    def _longest(
        self, place: Callable[[int, bool], Layout | None], *, drafts: bool
    ) -> LayoutPlan | None:
        """With as long a context as there is room for, shorter than what is asked for."""
        least = self.request.min_ctx
        if (layout := place(least, drafts)) is None:
            return None
        longest = LayoutPlan(layout, least, drafts)
        fits, fails = least // _CTX_STEP, -(-self.request.spec.n_ctx // _CTX_STEP)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if layout := place(middle * _CTX_STEP, drafts):
                longest, fits = LayoutPlan(layout, middle * _CTX_STEP, drafts), middle
            else:
                fails = middle
        return longest

    def _fill_devices(self, n_ctx: int) -> LayoutPlan | None:
        """All layers on devices with hardly a reserve, before one of them is left out.

        A drafter would only take the room of some, unless it lies in main memory anyway.
        """
        elsewhere = self.drafter is not None and self.placement_config.draft_device == ON_CPU
        for drafts in (True, False) if elsewhere else (False,):
            if layout := self.on_devices(n_ctx, drafts, self.max_capacities):
                return LayoutPlan(layout, n_ctx, drafts)
        return None

    @cached_property
    def is_pair_too_large(self) -> bool:
        """Whether target and drafter are too large for this machine, at the context asked for."""
        if self.drafter is None:
            return True
        request = replace(self.request, n_refusals=0)
        models = Model(at=self.target), Model(at=self.drafter)
        alone = Planner(request, *models, self.machine.with_all_free(), self.placement_config)
        place = alone.on_devices if self._targets else alone.in_main_memory
        return place(request.spec.n_ctx, True) is None

    # ----------------------------------------------------------------------- where it lies

    def in_main_memory(self, n_ctx: int, drafts: bool) -> Layout | None:
        for at in self.draft_places(on_devices=False) if drafts else (None,):
            layout = Layout(drafter=at)
            has_room = at is None or self.draft_bytes(n_ctx, at) <= self.capacities[at]
            if has_room and self._ram_allows(layout, n_ctx, drafts):
                return layout
        return None

    def on_devices(
        self, n_ctx: int, drafts: bool, capacities: Sequence[int] | None = None
    ) -> Layout | None:
        """All layers, or as many as the caller asked for, on the devices that are best for it."""
        n_layers = self._n_layers(n_ctx)
        places = self.draft_places(on_devices=True) if drafts else (None,)
        for devices, drafter in self._choices(places):
            layout = self._split_layers(n_ctx, n_layers, devices, drafter, capacities)
            if layout and self._ram_allows(layout, n_ctx, drafts):
                return layout
        return None

    def _partial_offload(self, n_ctx: int) -> LayoutPlan | None:
        """As many layers as fit, one block or more.

        A drafter would only take the room of more: there is none, unless the settings say where.
        """
        n_blocks = len(self.target(n_ctx).blocks)
        wanted = self.drafter is not None and self.placement_config.draft_device != AUTO
        for drafts in (True, False) if wanted else (False,):
            places = self.draft_places(on_devices=True) if drafts else (None,)
            for n_layers, at in ((n, at) for n in range(n_blocks, 1, -1) for at in places):
                layout = self._split_layers(n_ctx, n_layers, self._targets, at)
                if layout and (not drafts or self._ram_allows(layout, n_ctx, drafts)):
                    return LayoutPlan(layout, n_ctx, drafts)
        return None

    def _forced_layers(self, n_ctx: int) -> Layout:
        """So many layers as the caller wants, in proportion to the room that there is."""
        n_layers = self._n_layers(n_ctx)
        capacities = [self.capacities[at] + 1 for at in self._targets]
        ends = [
            round(n_layers * sum(capacities[:n]) / sum(capacities))
            for n in range(len(capacities) + 1)
        ]
        counts = [end - start for start, end in pairwise(ends)]
        return _layout(self._targets, counts, None)

    def _split_layers(
        self,
        n_ctx: int,
        n_layers: int,
        devices: Sequence[int],
        drafter: int | None,
        capacities: Sequence[int] | None = None,
    ) -> Layout | None:
        """The last layers of the target on these devices, the drafter on one of them or another."""
        target = self.target(n_ctx)
        left = list(capacities or self.capacities)
        if drafter is not None:
            left[drafter] -= self.draft_bytes(n_ctx, drafter)
            if left[drafter] < 0:
                return None
        counts = split_layers(
            layer_bytes(target, n_layers),
            [left[at] for at in devices],
            each=target.device_scratch_bytes
            + streamed_weights_bytes(target, n_layers)
            + copies_bytes(target, n_layers, len(devices)),
            once=target.extra_bytes,
        )
        return None if counts is None else _layout(devices, counts, drafter)

    def _choices(
        self, places: Sequence[int | None]
    ) -> Iterator[tuple[tuple[int, ...], int | None]]:
        """Devices of the target and that of the drafter, the best first.

        One GPU for both, the fullest that can; one for each; then as few as can, the emptiest
        first.  To spread is to begin with all of them.  Those with memory of their own are better,
        and a GPU that the settings name is for drafters first.
        """
        devices = self.machine.devices

        def order(choice: tuple[tuple[int, ...], int | None]) -> tuple[int, ...]:
            targets, drafter = choice
            used = {*targets, *(() if drafter is None else (drafter,))}
            n_shared = sum(devices[at].kind is DeviceKind.INTEGRATED for at in used)
            capacity = sum(self.capacities[at] for at in targets)
            beside = 0 if drafter is None else self.capacities[drafter]
            if self.placement_config.spread:
                return n_shared, -len(targets), len(used), -capacity, -beside
            disturbs = self.placement_config.draft_device != AUTO and drafter in targets
            sign = 1 if len(targets) == 1 else -1
            return n_shared, disturbs, len(used), len(targets), sign * capacity, sign * beside

        some = (d for n in range(1, len(self._targets) + 1) for d in self._some(n))
        yield from sorted(((targets, at) for targets in some for at in places), key=order)

    def _some(self, n: int) -> Iterator[tuple[int, ...]]:
        if n == 1 or len(self._targets) <= _MAX_LISTED_DEVICES:
            yield from combinations(self._targets, n)
        else:
            yield tuple(sorted(sorted(self._targets, key=lambda at: -self.capacities[at])[:n]))

    # ----------------------------------------------------------------------- bytes

    @property
    def allowed(self) -> tuple[int, ...]:
        """Places of the devices for the target."""
        return self._targets

    def needed_bytes(self, n_ctx: int, drafts: bool) -> int:
        """What has to find room: on devices, or in main memory where the target is for none."""
        if not self._targets:
            return self.used_bytes(Layout(), n_ctx, drafts)[None]
        on_devices = self.target(n_ctx).on_device(self._n_layers(n_ctx))
        at = next(iter(self.draft_places(on_devices=True)), None) if drafts else None
        return on_devices + (self.draft_bytes(n_ctx, at) if at is not None else 0)

    def draft_places(self, *, on_devices: bool) -> tuple[int | None, ...]:
        """Where a drafter may lie beside a target on devices or in main memory, which is None."""
        asked = self.placement_config.draft_device
        if asked == ON_CPU or not self._targets:
            return (None,)
        if asked == AUTO:
            return self._targets if on_devices else (None,)
        return tuple(at for at, d in enumerate(self.machine.devices) if d.id == asked)

    def draft_bytes(self, n_ctx: int, at: int | None) -> int:
        """What a drafter takes of the device at that place."""
        if self.drafter is None:
            return 0
        drafter = self.drafter(n_ctx)
        return drafter.total_bytes if at is None else drafter.on_device(-1)

    def _n_layers(self, n_ctx: int) -> int:
        """Of the target, on devices; the output is one of them."""
        everything = len(self.target(n_ctx).blocks) + 1
        asked = self.request.spec.n_gpu_layers
        return everything if asked < 0 else min(asked, everything)

    def _ram_allows(self, layout: Layout, n_ctx: int, drafts: bool) -> bool:
        """What lies on GPUs wholly takes next to nothing of main memory, unless they share it."""
        used_bytes = self.used_bytes(layout, n_ctx, drafts)
        devices = self.machine.devices
        shared = [at for at in layout.devices if devices[at].kind is DeviceKind.INTEGRATED]
        lies_there = layout.n_layers <= len(self.target(n_ctx).blocks)
        lies_there |= drafts and layout.drafter is None
        return not (shared or lies_there) or self.ram >= used_bytes[None] + sum(
            used_bytes[at] for at in shared
        )

    def used_bytes(self, layout: Layout, n_ctx: int, drafts: bool) -> dict[int | None, int]:
        """Bytes by the device's place; main memory is None."""
        target = self.target(n_ctx)
        drafter = self.drafter(n_ctx) if drafts and self.drafter is not None else None
        used_bytes: dict[int | None, int] = {
            None: layout.in_main_memory(target, drafter, self._mapped)
        }
        used_bytes.update(layout.on_devices(target, drafter).items())
        return used_bytes


def _allowed(spec: core.EngineSpec, devices: Sequence[Device]) -> tuple[int, ...]:
    """The places of the devices that the target may lie on, by the caller's own words."""
    if not devices or spec.n_gpu_layers == 0 or (spec.main_gpu is not None and spec.main_gpu < 0):
        return ()
    if spec.main_gpu is None:
        return tuple(range(len(devices)))
    for at, device in enumerate(devices):
        if device.index == spec.main_gpu:
            return (at,)
    there = ", ".join(f"{device.index} ({device.name})" for device in devices)
    raise errors.InvalidOption(
        f'option "main_gpu" is {spec.main_gpu}, and there is no such GPU: there is {there}'
    )


def _layout(devices: Sequence[int], counts: Sequence[int], drafter: int | None) -> Layout:
    layers = tuple((at, n) for at, n in zip(devices, counts, strict=True) if n)
    return Layout(layers=layers, drafter=drafter)
