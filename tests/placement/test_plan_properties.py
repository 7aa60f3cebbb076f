"""Check properties of every placement, for any request and machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hypothesis import assume, example, given
from hypothesis import strategies as st

from specd import core
from specd.core import GiveUp
from specd.placement import Device, DeviceKind
from specd.placement.config import PlacementConfig
from specd.placement.estimate import MIB, Block, Footprint
from specd.placement.plan import CPU, plan
from specd.placement.planner import PROCESS_BYTES, SHARE, MachineMemory, Model
from tests.placement.placement_cases import layers_by_llama_cpp

LEAST_CTX = 256
#: Memory that stays free on a GPU of this size.
RESERVE = 384 * MIB
TOTAL_GPU, TOTAL_RAM = 8192, 12_000


@dataclass(frozen=True)
class Size:
    """The sizes of a model in MiB; its cache in MiB per 1024 tokens and block."""

    blocks: tuple[int, ...]
    cache: int
    output: int
    scratch: int
    extra: int = 0

    def at(self, n_ctx: int) -> Footprint:
        cache = self.cache * MIB * n_ctx // 1024
        return Footprint(
            blocks=tuple(Block(weights_bytes=n * MIB, cache_bytes=cache) for n in self.blocks),
            input_bytes=10 * MIB,
            output_bytes=self.output * MIB,
            extra_bytes=self.extra * MIB,
            device_scratch_bytes=self.scratch * MIB,
            host_scratch_bytes=MIB,
            transfer_bytes=self.scratch * MIB // 5,
        )


def sizes(largest: int) -> st.SearchStrategy[Size]:
    return st.builds(
        Size,
        blocks=st.lists(st.integers(1, largest), min_size=1, max_size=9).map(tuple),
        cache=st.integers(0, 100),
        output=st.integers(0, largest),
        scratch=st.integers(0, 100),
        extra=st.integers(0, 300),
    )


def gpu(index: int, free_mib: int, kind: DeviceKind = DeviceKind.DISCRETE) -> Device:
    return Device(
        vendor="v",
        index=index,
        name=f"GPU {index}",
        uuid="",
        total_bytes=TOTAL_GPU * MIB,
        free_bytes=free_mib * MIB,
        id=f"id-{index}",
        kind=kind,
    )


class Quality(NamedTuple):
    """The goals of placement by priority; a drafter is worth up to a third of the context."""

    fits: bool
    n_layers: int
    n_ctx: int
    drafts: bool

    def is_no_worse_than(self, other: Quality) -> bool:
        worth_it = self.drafts and not other.drafts and 3 * self.n_ctx >= 2 * other.n_ctx
        return self >= other or (self[:2] == other[:2] and worth_it)


@dataclass(frozen=True)
class Asked:
    target: Size
    drafter: Size | None
    free: tuple[int, ...]
    ram: int
    integrated: bool = False
    n_ctx: int = 4096
    placement_config: PlacementConfig = PlacementConfig()  # noqa: RUF009 - it is frozen
    num_gpu: int = -1
    n_refusals: int = 0

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(
            gpu(
                at,
                mib,
                DeviceKind.INTEGRATED if self.integrated and at == 0 else DeviceKind.DISCRETE,
            )
            for at, mib in enumerate(self.free)
        )

    @property
    def is_lost(self) -> bool:
        """Return whether the device that the settings name for drafters is missing."""
        named = self.placement_config.draft_device
        may = bool(self.devices) and self.num_gpu != 0
        return may and named.startswith("id-") and named not in {d.id for d in self.devices}

    def place(self, give_up: GiveUp = GiveUp.ANYTHING) -> core.Placement:
        spec = core.EngineSpec(
            weights="t",
            drafter="d" if self.drafter else None,
            n_ctx=self.n_ctx,
            n_gpu_layers=self.num_gpu,
        )
        return plan(
            core.PlacementRequest(
                spec=spec, min_ctx=LEAST_CTX, give_up=give_up, n_refusals=self.n_refusals
            ),
            Model(at=self.target.at),
            Model(at=self.drafter.at) if self.drafter else None,
            MachineMemory(
                devices=self.devices, ram_bytes=self.ram * MIB, total_ram_bytes=TOTAL_RAM * MIB
            ),
            self.placement_config,
        )

    def quality(self, give_up: GiveUp = GiveUp.ANYTHING) -> Quality:
        placement = self.place(give_up)
        spec = placement.spec
        return Quality(placement.fits, self.n_layers(spec), spec.n_ctx, spec.drafter is not None)

    @property
    def ever_drafts(self) -> bool:
        """Return whether the whole pair fits on a machine without other models."""
        empty = replace(self, free=(TOTAL_GPU,) * len(self.free), ram=TOTAL_RAM, n_refusals=0)
        placement = empty.place(GiveUp.NOTHING)
        return placement.fits and placement.spec.drafter is not None

    def n_layers(self, spec: core.EngineSpec) -> int:
        layers = layers_by_llama_cpp(spec, len(self.target.blocks))
        return sum(device != "" for device in layers)

    def taken(self, spec: core.EngineSpec) -> Counter[str]:
        """Return the bytes per device by llama.cpp's rule, from the engine's spec."""
        target = self.target.at(spec.n_ctx)
        bytes_of = [block.weights_bytes + block.cache_bytes for block in target.blocks]
        layers = layers_by_llama_cpp(spec, len(target.blocks))
        taken: Counter[str] = Counter()
        for device, n_bytes in zip(layers, [*bytes_of, target.output_bytes], strict=True):
            taken[device] += n_bytes
        for device in {*layers} - {""}:
            taken[device] += target.device_scratch_bytes
            # For long prompts the blocks in main memory are copied to it, one at a time.
            kept = zip(layers, target.blocks, strict=False)
            taken[device] += max((b.weights_bytes for at, b in kept if at == ""), default=0)
            if "" not in layers and len({*layers}) > 1:
                taken[device] += 3 * target.transfer_bytes
        if spec.devices:
            taken[spec.devices[0] if {*layers} - {""} else ""] += target.extra_bytes
        if spec.drafter and self.drafter and spec.devices and not spec.draft_on_cpu:
            drafter = self.drafter.at(spec.n_ctx).on_device(-1)
            taken[spec.devices[spec.draft_device or 0]] += drafter
        for device in spec.devices or ():
            taken[device] += PROCESS_BYTES
        return taken


FREE = st.lists(st.integers(0, 6000), max_size=4).map(tuple)
WISHES = st.builds(
    PlacementConfig,
    overhead_bytes=st.integers(0, 500).map(lambda mib: mib * MIB),
    spread=st.booleans(),
    draft_device=st.sampled_from(["auto", "auto", "cpu", "id-0", "id-1", "id-9"]),
)
ASKED = st.builds(
    Asked,
    target=sizes(600),
    drafter=st.none() | sizes(150),
    free=FREE,
    ram=st.integers(0, 8000),
    integrated=st.booleans(),
    placement_config=WISHES,
    num_gpu=st.sampled_from([-1, -1, -1, 0, 1, 4, 99]),
    n_refusals=st.integers(0, 3),
)
LEVELS = st.sampled_from(GiveUp)


@given(ASKED, LEVELS)
def test_no_device_gets_more_than_it_has(asked: Asked, level: GiveUp) -> None:
    placement = asked.place(level)
    if asked.num_gpu > 0 and level is GiveUp.ANYTHING:
        return  # the request fixes the number of layers
    if placement.fits:
        taken = asked.taken(placement.spec)
        for device in asked.devices:
            left_alone = asked.placement_config.overhead_bytes + RESERVE if taken[device.id] else 0
            assert taken[device.id] <= max(device.free_bytes - left_alone, 0)


@given(ASKED, LEVELS)
def test_the_reported_bytes_match_llama_cpp(asked: Asked, level: GiveUp) -> None:
    placement = asked.place(level)
    said = Counter(dict(placement.bytes_by_device))
    if placement.fits and placement.spec.devices is not None:
        taken = asked.taken(placement.spec)
        assert {d: said[d] for d in placement.spec.devices} == {
            d: taken[d] for d in placement.spec.devices
        }


@given(ASKED, LEVELS)
def test_only_a_target_without_a_drafter_may_exceed_main_memory(
    asked: Asked, level: GiveUp
) -> None:
    placement = asked.place(level)
    spec = placement.spec
    said = Counter(dict(placement.bytes_by_device))
    on_cpu = not spec.devices or asked.n_layers(spec) <= len(asked.target.blocks)
    if placement.fits and (on_cpu or spec.draft_on_cpu) and said[CPU] > SHARE * asked.ram * MIB:
        assert level is GiveUp.ANYTHING
        assert spec.drafter is None
        assert spec.n_ctx == LEAST_CTX


@given(ASKED)
def test_nothing_is_given_up_without_need(asked: Asked) -> None:
    levels = [asked.place(level) for level in GiveUp]
    for less, more in pairwise(levels):
        assert not less.fits or more == less
    assert levels[GiveUp.ANYTHING].fits
    whole, without, _ = (placement.spec for placement in levels)
    if levels[GiveUp.NOTHING].fits:
        assert (whole.drafter is not None) == (asked.drafter is not None and asked.ever_drafts)
    if levels[GiveUp.DRAFTER].fits:
        assert without.n_ctx == asked.n_ctx
    without_drafter = replace(asked, drafter=None)
    if asked.placement_config.draft_device == "auto":
        assert levels[GiveUp.DRAFTER].fits == without_drafter.place(GiveUp.NOTHING).fits


@given(ASKED, sizes(4000), LEVELS)
@example(Asked(Size((100,), 0, 10, 0), None, (), 8000), Size((39_000,), 0, 10, 0), GiveUp.NOTHING)
@example(Asked(Size((100,), 0, 10, 0), None, (2000,), 0), Size((8000,), 0, 10, 0), GiveUp.NOTHING)
def test_no_model_is_unloaded_for_a_drafter_that_never_fits(
    asked: Asked, drafter: Size, level: GiveUp
) -> None:
    alone = replace(asked, drafter=None).place(level)
    asked = replace(asked, drafter=drafter)
    placement = asked.place(level)
    if alone.fits and alone.spec.n_ctx == asked.n_ctx and not asked.ever_drafts:
        assert placement.fits
        assert placement.spec.drafter is None
    elif level is GiveUp.NOTHING:
        # Other models are unloaded for a drafter that can fit, and always for a target.
        assert not placement.fits or placement.spec.drafter is not None


@given(ASKED)
def test_only_the_setting_puts_a_drafter_in_main_memory(
    asked: Asked,
) -> None:
    spec = asked.place().spec
    if spec.draft_on_cpu:
        assert asked.placement_config.draft_device == "cpu"
    elif spec.drafter and asked.n_layers(spec):
        assert spec.devices
        assert (spec.draft_device or 0) < len(spec.devices)


@given(ASKED)
def test_a_drafter_is_given_up_only_if_it_does_not_fit(asked: Asked) -> None:
    given_up = asked.place().spec
    assume(asked.drafter is not None and given_up.drafter is None)
    assert given_up.no_pair_reason == core.NoPair.NO_VRAM
    assert given_up.no_pair_detail
    if asked.is_lost or not asked.ever_drafts:
        # A pair that would not fit on an empty machine loses its drafter at every level.
        return
    if asked.n_layers(given_up) == len(asked.target.blocks) + 1 or not given_up.devices:
        again = replace(asked, n_ctx=given_up.n_ctx).place(GiveUp.NOTHING)
        assert not again.fits


@given(ASKED, LEVELS, st.lists(st.integers(0, 3000), min_size=4, max_size=4))
@example(
    Asked(Size((500,), 0, 10, 0), Size((100,), 0, 10, 0), (2000, 1900), 8000),
    GiveUp.ANYTHING,
    [0, 200, 0, 0],
)
def test_more_memory_is_never_worse(asked: Asked, level: GiveUp, more: Sequence[int]) -> None:
    # With a fixed number of layers or shared memory, more of one memory may mean less of another.
    asked = replace(asked, integrated=False, num_gpu=min(asked.num_gpu, 0))
    larger = replace(asked, free=tuple(map(sum, zip(asked.free, more, strict=False))))
    assert larger.quality(level).is_no_worse_than(asked.quality(level))


@given(ASKED, LEVELS, st.integers(0, 4000))
def test_more_main_memory_is_never_worse(asked: Asked, level: GiveUp, more: int) -> None:
    larger = replace(asked, ram=asked.ram + more)
    assert larger.quality(level).is_no_worse_than(asked.quality(level))


@given(ASKED, LEVELS)
def test_a_refused_load_requests_less_memory(asked: Asked, level: GiveUp) -> None:
    asked = replace(asked, num_gpu=min(asked.num_gpu, 0))
    refused = replace(asked, n_refusals=asked.n_refusals + 1)
    assert asked.quality(level).is_no_worse_than(refused.quality(level))
