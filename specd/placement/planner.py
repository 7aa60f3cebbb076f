"""Choose a layout for target and drafter, from the best to the least bad, by bytes alone."""

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
from specd.placement.estimate import MIB, REFUSED_SHARE, Footprint
from specd.placement.layer_split import split_layers
from specd.placement.layout import Layout, device_scratch_bytes, layer_bytes

#: Share of the free main memory that an engine may take: an estimate may be a little wrong.
SHARE: Final = 0.8
#: Share of a GPU that stays free, and its bounds: drivers, desktops and cuBLAS need some.
_RESERVE, _MIN_RESERVE, _MAX_RESERVE = 0.04, 384 * MIB, 1024 * MIB
#: Bytes that a process takes on a GPU before it loads anything, until this is measured.
PROCESS_BYTES: Final = 400 * MIB
#: A default context that was shortened is a multiple of this, or the smallest allowed one.
_CTX_STEP = 1024
#: Share of the context that may be given up for a drafter if the context shrinks anyway.
_MAX_CTX_LOSS = 1 / 3
#: With more GPUs than this, not all combinations of them are tried.
_MAX_LISTED_DEVICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to be placed.

    at: returns its footprint for a context of so many tokens per slot.
    is_mapped: another engine already maps its weights into main memory.
    """

    at: Callable[[int], Footprint]
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """The free memory of the machine.

    ram_bytes: free main memory.  total_ram_bytes: all main memory.
    is_complete: False if llama.cpp may find devices that are not listed here.
    process_bytes: bytes that a process takes on a device before it loads anything, by the device's
    id, as far as measured.
    """

    devices: tuple[Device, ...]
    ram_bytes: int
    total_ram_bytes: int
    is_complete: bool = True
    process_bytes: Mapping[str, int] = field(default_factory=dict)

    def process_bytes_on(self, device: Device) -> int:
        """Return the bytes that a process takes on a device before it loads anything."""
        return self.process_bytes.get(device.id, PROCESS_BYTES)

    def with_all_free(self) -> MachineMemory:
        """Return the same machine with all its memory free."""
        devices = (replace(d, free_bytes=max(d.total_bytes, d.free_bytes)) for d in self.devices)
        ram_bytes = max(self.total_ram_bytes, self.ram_bytes)
        return replace(self, devices=tuple(devices), ram_bytes=ram_bytes)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """A layout and what it costs.  fits: False if it is tried only for lack of a better one."""

    layout: Layout
    n_ctx: int
    drafts: bool
    fits: bool = True


class Planner:
    """The choice of a layout for one request: tries the best first, then gives up step by step."""

    def __init__(
        self,
        request: core.PlacementRequest,
        target: Model,
        drafter: Model | None,
        machine: MachineMemory,
        placement_config: PlacementConfig,
    ) -> None:
        """Compute the capacities; raise InvalidOption if `main_gpu` names no existing GPU."""
        self.request = request
        self.machine = machine
        self.placement_config = placement_config
        self.target = cache(target.at)
        self.drafter = cache(drafter.at) if drafter is not None else None
        self._mapped = target.is_mapped, drafter is not None and drafter.is_mapped
        margin = 1 + REFUSED_SHARE * request.n_refusals
        self.ram = int(SHARE * machine.ram_bytes / margin)
        self.capacities = [int(self._capacity(device) / margin) for device in machine.devices]
        #: With the smallest reserve, used only if a layer would not fit otherwise.
        self.max_capacities = [
            int(self._capacity(device, max_reserve=_MIN_RESERVE) / margin)
            for device in machine.devices
        ]
        self._targets = _allowed(request.spec, machine.devices)

    def _capacity(self, device: Device, max_reserve: int = _MAX_RESERVE) -> int:
        """Return the bytes that the models of one process may take on a device.

        max_reserve: most bytes that stay free.
        """
        reserve = min(max(int(_RESERVE * device.total_bytes), _MIN_RESERVE), max_reserve)
        spared = (
            self.placement_config.overhead_bytes + reserve + self.machine.process_bytes_on(device)
        )
        return max(min(device.free_bytes, device.total_bytes) - spared, 0)

    # ----------------------------------------------------------------------- plans

    def plan(self) -> LayoutPlan | None:
        """Return the best plan that fits; None if another model has to be unloaded first."""
        spec, least = self.request.spec, self.request.min_ctx
        anything = self.request.give_up is core.GiveUp.ANYTHING
        if self._targets:
            if (plan := self._next_best(self.on_devices)) or not anything:
                return plan
            if plan := self._fill_devices(least):
                return plan
            if spec.n_gpu_layers > 0:  # the caller has set the number
                return LayoutPlan(self._forced_layers(least), least, drafts=False, fits=False)
            if plan := self._partial_offload(least):
                return plan
        if (plan := self._next_best(self.in_main_memory)) or not anything:
            return plan
        return LayoutPlan(Layout(), least, drafts=False, fits=False)

    def _next_best(self, place: Callable[[int, bool], Layout | None]) -> LayoutPlan | None:
        """Return the first plan that fits: all as asked, without drafter, with a shorter context.

        No other model is unloaded for a drafter that would not fit on an empty machine.
        place: returns the layout for tokens per slot and whether there is a drafter, or None.
        """
        give_up, n_ctx = self.request.give_up, self.request.spec.n_ctx
        # If the device for drafters is gone, unloading other models does not help.
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
        if pair is not None and pair.n_ctx >= (1 - _MAX_CTX_LOSS) * alone.n_ctx:
            return pair
        return alone

    def _longest(
        self, place: Callable[[int, bool], Layout | None], *, drafts: bool
    ) -> LayoutPlan | None:
        """Return the plan with the longest context that fits, shorter than the requested one."""
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
        """Return a plan with all layers on devices, using most of the reserve; None if too large.

        There is a drafter only if it is in main memory: on a device it would displace layers.
        """
        elsewhere = self.drafter is not None and self.placement_config.draft_device == ON_CPU
        for drafts in (True, False) if elsewhere else (False,):
            if layout := self.on_devices(n_ctx, drafts, self.max_capacities):
                return LayoutPlan(layout, n_ctx, drafts)
        return None

    @cached_property
    def is_pair_too_large(self) -> bool:
        """Whether target and drafter do not fit on this machine even if all its memory is free."""
        if self.drafter is None:
            return True
        request = replace(self.request, n_refusals=0)
        models = Model(at=self.target), Model(at=self.drafter)
        alone = Planner(request, *models, self.machine.with_all_free(), self.placement_config)
        place = alone.on_devices if self._targets else alone.in_main_memory
        return place(request.spec.n_ctx, True) is None

    # ----------------------------------------------------------------------- layouts

    def in_main_memory(self, n_ctx: int, drafts: bool) -> Layout | None:
        """Return a layout with the target in main memory; None if it does not fit."""
        for at in self.draft_places(on_devices=False) if drafts else (None,):
            layout = Layout(drafter=at)
            has_room = at is None or self.draft_bytes(n_ctx, at) <= self.capacities[at]
            if has_room and self._ram_allows(layout, n_ctx, drafts):
                return layout
        return None

    def on_devices(
        self, n_ctx: int, drafts: bool, capacities: Sequence[int] | None = None
    ) -> Layout | None:
        """Return the best layout with all layers, or the requested number, on devices; or None."""
        n_layers = self._n_layers(n_ctx)
        places = self.draft_places(on_devices=True) if drafts else (None,)
        for devices, drafter in self._choices(places):
            layout = self._split_layers(n_ctx, n_layers, devices, drafter, capacities)
            if layout and self._ram_allows(layout, n_ctx, drafts):
                return layout
        return None

    def _partial_offload(self, n_ctx: int) -> LayoutPlan | None:
        """Return the plan with the most layers on devices, at least one block; None if none fits.

        There is a drafter only if the settings name its device: elsewhere it would displace layers.
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
        """Return the requested layers, divided in proportion to the capacities."""
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
        """Return a layout with the target's last layers on these devices; None if it does not fit.

        drafter: the place of its device, None for main memory.
        """
        target = self.target(n_ctx)
        left = list(capacities or self.capacities)
        if drafter is not None:
            left[drafter] -= self.draft_bytes(n_ctx, drafter)
            if left[drafter] < 0:
                return None
        counts = split_layers(
            layer_bytes(target, n_layers),
            [left[at] for at in devices],
            each=device_scratch_bytes(target, n_layers, len(devices)),
            once=target.extra_bytes,
        )
        return None if counts is None else _layout(devices, counts, drafter)

    def _choices(
        self, places: Sequence[int | None]
    ) -> Iterator[tuple[tuple[int, ...], int | None]]:
        """Yield (devices of the target, device of the drafter), the best choice first.

        First one GPU for both, the one with the least free memory; then one for each; then as few
        as possible, the one with the most free memory first.  With `spread`, all GPUs come first.
        Discrete GPUs come before integrated ones.  A GPU that the settings name for drafters is the
        target's last choice.
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
        """The places of the devices that the target may use."""
        return self._targets

    def needed_bytes(self, n_ctx: int, drafts: bool) -> int:
        """Return the bytes needed on devices, or in main memory if the target may use no device."""
        if not self._targets:
            return self.used_bytes(Layout(), n_ctx, drafts)[None]
        layout = Layout(layers=((0, self._n_layers(n_ctx)),))
        on_devices = layout.on_devices(self.target(n_ctx), None).total()
        at = next(iter(self.draft_places(on_devices=True)), None) if drafts else None
        return on_devices + (self.draft_bytes(n_ctx, at) if at is not None else 0)

    def draft_places(self, *, on_devices: bool) -> tuple[int | None, ...]:
        """Return the places where a drafter may be; None stands for main memory.

        on_devices: whether the target is on devices.
        """
        asked = self.placement_config.draft_device
        if asked == ON_CPU or not self._targets:
            return (None,)
        if asked == AUTO:
            return self._targets if on_devices else (None,)
        return tuple(at for at, d in enumerate(self.machine.devices) if d.id == asked)

    def draft_bytes(self, n_ctx: int, at: int | None) -> int:
        """Return the bytes that the drafter takes at that place."""
        if self.drafter is None:
            return 0
        drafter = self.drafter(n_ctx)
        return drafter.total_bytes if at is None else drafter.on_device(-1)

    def _n_layers(self, n_ctx: int) -> int:
        """Return the target's layers to put on devices; the output is one of them."""
        everything = len(self.target(n_ctx).blocks) + 1
        asked = self.request.spec.n_gpu_layers
        return everything if asked < 0 else min(asked, everything)

    def _ram_allows(self, layout: Layout, n_ctx: int, drafts: bool) -> bool:
        """Return whether main memory has enough for the layout.

        Models that are wholly on discrete GPUs are not checked: they need hardly any main memory.
        """
        used_bytes = self.used_bytes(layout, n_ctx, drafts)
        devices = self.machine.devices
        shared = [at for at in layout.devices if devices[at].kind is DeviceKind.INTEGRATED]
        lies_there = layout.n_layers <= len(self.target(n_ctx).blocks)
        lies_there |= drafts and layout.drafter is None
        return not (shared or lies_there) or self.ram >= used_bytes[None] + sum(
            used_bytes[at] for at in shared
        )

    def used_bytes(self, layout: Layout, n_ctx: int, drafts: bool) -> dict[int | None, int]:
        """Return the bytes by the device's place; None stands for main memory."""
        target = self.target(n_ctx)
        drafter = self.drafter(n_ctx) if drafts and self.drafter is not None else None
        used_bytes: dict[int | None, int] = {
            None: layout.in_main_memory(target, drafter, self._mapped)
        }
        used_bytes.update(layout.on_devices(target, drafter).items())
        return used_bytes


def _allowed(spec: core.EngineSpec, devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the places of the devices that the request's options allow for the target."""
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
