"""The rules of placement, one by one; the table has them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specd import core
from specd.core import GiveUp
from specd.errors import InvalidOption
from specd.placement import Device, DeviceKind
from specd.placement.estimate import MIB
from specd.placement.planner import PROCESS_BYTES
from tests.placement.placement_cases import Case, layers_by_llama_cpp, model, pieces
from tests.placement.published_models import GIB, gpus, shape

PAIR = Case(target="llama3.1:8b Q4_K_M", drafter="llama3.2:1b Q4_K_M", n_ctx=4096)
LARGE = Case(target="llama3.3:70b Q4_K_M", drafter="llama3.2:1b Q4_K_M", n_ctx=4096)


def layers(case: Case, spec: core.EngineSpec) -> dict[str, int]:
    return pieces(layers_by_llama_cpp(spec, len(shape(case.target).layer_bytes)))


def integrated(gib: int) -> Device:
    (device,) = gpus("24")
    return replace(device, total_bytes=gib * GIB, free_bytes=gib * GIB, kind=DeviceKind.INTEGRATED)


# ------------------------------------------------------------------------ the caller's words


@pytest.mark.contract("options.runner")
@pytest.mark.parametrize("case", [replace(PAIR, num_gpu=0), replace(PAIR, main_gpu=-1)])
def test_a_caller_that_wants_no_gpu_gets_none(case: Case) -> None:
    spec = case.place(gpus("24")).spec
    assert (spec.devices, spec.n_gpu_layers, spec.drafter) == ((), 0, PAIR.drafter)
    assert not spec.draft_on_cpu


def test_num_gpu_0_is_for_the_drafter_too_wherever_the_settings_want_it() -> None:
    spec = replace(PAIR, num_gpu=0, draft_device="GPU-0").place(gpus("24")).spec
    assert (spec.devices, spec.draft_device) == ((), None)


@pytest.mark.contract("options.runner")
def test_main_gpu_is_a_number_among_those_that_are_there() -> None:
    assert replace(PAIR, main_gpu=1).place(gpus("24+24")).spec.devices == ("GPU-1",)
    with pytest.raises(InvalidOption, match=r'"main_gpu" is 2, .* there is 0 \(.*\), 1 \(.*\)$'):
        replace(PAIR, main_gpu=2).place(gpus("24+24"))


@pytest.mark.contract("options.runner")
def test_more_layers_than_there_are_is_all_of_them() -> None:
    spec = replace(PAIR, num_gpu=999).place(gpus("24")).spec
    assert spec.n_gpu_layers == -1
    assert layers(PAIR, spec) == {"GPU-0": 33}


@pytest.mark.parametrize(
    "asked",
    [{"num_gpu": 0}, {"num_gpu": 9}, {"num_gpu": 999}, {"main_gpu": 3}, {"main_gpu": -1}],
)
def test_without_gpus_nothing_that_is_said_of_them_makes_another_engine(
    asked: dict[str, Any],
) -> None:
    assert replace(PAIR, **asked).place(()).spec == PAIR.place(()).spec


def test_the_same_place_is_the_same_engine_whatever_was_asked_for() -> None:
    one, two = gpus("24"), gpus("24+24")
    everywhere = PAIR.place(one).spec
    assert replace(PAIR, num_gpu=33, main_gpu=0).place(one).spec == everywhere
    nowhere = replace(PAIR, num_gpu=0).place(two).spec
    assert nowhere == replace(PAIR, num_gpu=0, main_gpu=1).place(two).spec
    assert nowhere == replace(PAIR, main_gpu=-1).place(two).spec
    assert nowhere != everywhere
    assert replace(PAIR, main_gpu=1).place(two).spec.main_gpu == 1


def test_so_many_layers_as_the_caller_wants_are_tried_though_they_do_not_fit() -> None:
    case = replace(LARGE, num_gpu=70)
    assert not case.place(gpus("24+8"), GiveUp.DRAFTER).fits
    spec = case.place(gpus("24+8")).spec
    assert (spec.n_gpu_layers, spec.drafter) == (70, None)
    there = layers(case, spec)
    assert there["GPU-0"] + there["GPU-1"] == 70
    assert there["GPU-0"] / there["GPU-1"] == pytest.approx(22.3 / 7.0, rel=0.1)


def test_layers_that_the_caller_fixes_are_split_where_one_gpu_is_too_small() -> None:
    case = replace(LARGE, num_gpu=60)
    placement = case.place(gpus("24+24"), GiveUp.NOTHING)
    assert placement.fits
    assert placement.spec.drafter == LARGE.drafter
    there = layers(case, placement.spec)
    assert (there[""], there["GPU-0"] + there["GPU-1"]) == (21, 60)


# ------------------------------------------------------------------------------- which GPUs


def test_a_projector_lies_on_the_first_gpu_which_is_the_targets() -> None:
    case = replace(PAIR, target="llama3.1:8b F16", draft_device="GPU-0", extra=1.0)
    spec = case.place(gpus("24+24")).spec
    assert (spec.devices, spec.draft_device) == (("GPU-1", "GPU-0"), 1)
    assert spec.tensor_split == (33.0, 0.0)


def test_beside_its_target_on_one_gpu_a_drafter_needs_no_word() -> None:
    spec = PAIR.place(gpus("24")).spec
    assert (spec.draft_device, spec.tensor_split, spec.n_gpu_layers) == (None, (), -1)


def test_a_drafter_is_whole_beside_a_target_that_is_cut() -> None:
    spec = replace(PAIR, num_gpu=5).place(gpus("24")).spec
    assert (spec.n_gpu_layers, spec.devices, spec.draft_device) == (5, ("GPU-0",), 0)


def test_to_spread_is_to_use_all_gpus_that_can_hold_something() -> None:
    spread = replace(PAIR, spread=True)
    assert set(layers(PAIR, spread.place(gpus("24+24+24")).spec)) == {"GPU-0", "GPU-1", "GPU-2"}
    full = replace(gpus("24")[0], index=1, id="GPU-1", free_bytes=500 * MIB)
    assert set(layers(PAIR, spread.place((*gpus("24"), full)).spec)) == {"GPU-0"}


def test_a_split_is_over_the_emptiest() -> None:
    case = Case(target="qwen2.5:32b Q4_K_M", n_ctx=32_768)  # 26.3 GiB: 8 and 24 GB would do
    assert case.place(gpus("24+8+24")).spec.devices == ("GPU-0", "GPU-2")


def test_of_many_gpus_the_emptiest_are_tried() -> None:
    spec = LARGE.place(gpus("+".join(["8"] * 12)), GiveUp.NOTHING).spec
    assert spec.drafter == LARGE.drafter
    assert 7 <= len(spec.devices or ()) <= 8


def test_a_gpu_of_its_own_memory_is_better_than_one_that_shares_ours() -> None:
    shared = replace(integrated(16), index=1, id="Vulkan1")
    assert PAIR.place((*gpus("24"), shared)).spec.devices == ("GPU-0",)


def test_an_integrated_gpu_takes_of_main_memory() -> None:
    case = replace(PAIR, n_ctx=32_768)  # 8.4 and 1.9 GiB on the GPU, 0.5 GiB beside it
    assert replace(case, ram=17).place([integrated(16)], GiveUp.NOTHING).fits
    assert not replace(case, ram=14).place([integrated(16)], GiveUp.NOTHING).fits
    spec = replace(case, ram=14).place([integrated(16)], GiveUp.DRAFTER).spec
    assert (spec.devices, spec.drafter) == (("GPU-0",), None)


# ------------------------------------------------------------------------ drafters elsewhere


def test_a_drafter_that_is_to_lie_in_main_memory_needs_room_there() -> None:
    case = replace(PAIR, draft_device="cpu")
    spec = case.place(gpus("8"), GiveUp.NOTHING).spec
    assert (spec.devices, spec.draft_on_cpu, spec.draft_device) == (("GPU-0",), True, None)
    spec = replace(case, ram=3).place(gpus("8")).spec
    assert (spec.drafter, spec.draft_on_cpu) == (None, False)
    assert "main memory has " in spec.no_pair_detail


def test_a_drafter_in_main_memory_stays_beside_a_target_that_is_partly_there() -> None:
    spec = replace(LARGE, draft_device="cpu").place(gpus("24")).spec
    assert spec.draft_on_cpu
    assert 0 < layers(LARGE, spec)["GPU-0"] < 81


def test_a_drafter_has_the_gpu_that_is_named_though_its_target_is_on_none() -> None:
    small = replace(gpus("8")[0], free_bytes=1900 * MIB)  # a GiB of it may be taken
    spec = replace(LARGE, draft_device="GPU-0", ram=128).place([small]).spec
    assert (spec.devices, spec.n_gpu_layers, spec.draft_device) == (("GPU-0",), 0, 0)
    assert spec.drafter == LARGE.drafter
    assert not spec.draft_on_cpu


@pytest.mark.parametrize("level", GiveUp)
def test_a_device_for_drafters_that_is_lost_is_said_and_nobody_leaves_for_it(
    level: GiveUp,
) -> None:
    placement = replace(PAIR, draft_device="GPU-1").place(gpus("24"), level)
    assert placement.fits
    spec = placement.spec
    assert (spec.drafter, spec.devices) == (None, ("GPU-0",))
    assert spec.no_pair_detail == (
        "the device that SPECD_DRAFT_DEVICE names for llama3.2:1b Q4_K_M is gone"
    )


# -------------------------------------------------------------------------- what is given up


def test_memory_that_was_refused_makes_everything_larger() -> None:
    case = replace(PAIR, target="llama3.1:8b F16", n_ctx=0)
    given_up = [replace(case, n_refusals=n).place(gpus("24")).spec for n in range(5)]
    assert [(spec.n_ctx, spec.drafter is not None) for spec in given_up[:3]] == [
        (32_768, True),
        (29_696, False),
        (6144, False),
    ]
    assert [spec.n_gpu_layers for spec in given_up[:2]] == [-1, -1]
    n_layers = [layers(case, spec).get("GPU-0", 0) for spec in given_up]
    assert n_layers == sorted(n_layers, reverse=True)


def test_memory_that_was_refused_to_an_engine_alone_is_not_there() -> None:
    """However much of the GPU seems to be free: what was asked for is given up step by step."""
    case = replace(PAIR, n_ctx=0)
    given_up = [
        replace(case, n_refusals=n, n_refused_alone=n).place(gpus("80")).spec for n in range(4)
    ]
    assert [spec.drafter is None for spec in given_up] == [False, False, False, True]
    lengths = [spec.n_ctx for spec in given_up]
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[3] < lengths[0] / 2
    assert {spec.n_gpu_layers for spec in given_up} == {-1}


def test_a_context_that_was_asked_for_stays_and_layers_are_given_up() -> None:
    case = replace(PAIR, drafter=None, n_ctx=4096)
    first, second = (
        replace(case, n_refusals=n, n_refused_alone=n).place(gpus("24")).spec for n in range(2)
    )
    assert (first.n_ctx, second.n_ctx) == (4096, 4096)
    assert first.n_gpu_layers == -1
    assert 0 < second.n_gpu_layers < 30


def test_refused_main_memory_is_not_there_either() -> None:
    case = replace(PAIR, n_ctx=0)
    refused = replace(case, n_refusals=1, n_refused_alone=1)
    assert case.place(()).spec.drafter is not None
    assert refused.place(()).spec.drafter is None


def said(case: Case, devices: Sequence[Device]) -> str:
    spec = case.place(devices).spec
    assert spec.no_pair_reason == "drafter_no_vram"
    assert (spec.drafter, spec.drafter_name, spec.pair_source) == (None, "", "")
    assert spec.max_draft is None
    return spec.no_pair_detail


def test_a_shorter_context_or_a_smaller_cache_may_help() -> None:
    assert said(replace(PAIR, drafter="llama3.2:3b Q4_K_M"), gpus("8")) == (
        "llama3.2:3b Q4_K_M needs 2.4 GiB, and NVIDIA GeForce RTX 4060 has 2.1 GiB left"
        " for it: a num_ctx of 2048 or OLLAMA_KV_CACHE_TYPE=q8_0 would help"
    )


def test_no_help_is_promised_that_is_none() -> None:
    assert said(replace(PAIR, drafter="llama3.1:8b Q8_0"), gpus("8")).endswith(" left for it")


def test_a_smaller_cache_of_the_target_is_of_no_use_to_a_drafter_elsewhere() -> None:
    """The drafter's own cache of 4 GiB is what counts."""
    large, small = gpus("24+24")
    cards = [large, replace(small, free_bytes=3000 * MIB)]
    case = replace(PAIR, n_ctx=131_072, draft_device="GPU-1")
    assert said(case, cards).endswith(" left for it: a num_ctx of 16384 would help")
    assert replace(case, n_ctx=16_384).place(cards, GiveUp.NOTHING).spec.drafter
    assert replace(case, cache="q8_0").place(cards).spec.drafter is None


def test_what_is_promised_to_make_room_does() -> None:
    case = replace(PAIR, drafter="llama3.2:3b Q4_K_M")
    for better in (replace(case, n_ctx=2048), replace(case, cache="q8_0")):
        assert better.place(gpus("8"), GiveUp.NOTHING).spec.drafter
    small = Case(target="gemma3:12b Q4_K_M", drafter="gemma3:4b Q4_K_M", n_ctx=16_384)
    assert "q8_0" in said(small, gpus("12"))
    assert replace(small, cache="q8_0").place(gpus("12")).spec.drafter


def test_slots_that_take_the_room_of_a_drafter_are_said() -> None:
    case = replace(PAIR, n_slots=16)
    assert said(case, gpus("16")).endswith(
        ": a num_ctx of 2048 or OLLAMA_NUM_PARALLEL=8 or OLLAMA_KV_CACHE_TYPE=q8_0 would help"
    )
    assert replace(case, n_slots=8).place(gpus("16"), GiveUp.NOTHING).spec.drafter


def test_several_gpus_that_work_at_once_keep_copies_of_what_they_are_handed() -> None:
    """Three more, of a mask and of the rows of one batch."""
    case = Case(target="qwen2.5:32b Q4_K_M", n_ctx=32_768)
    whole, cut = (replace(case, num_gpu=n).place(gpus("24+24")) for n in (-1, 64))
    everything, without = (sum(dict(p.bytes_by_device).values()) for p in (whole, cut))
    mask, rows = 2 * 32_768 * 512, 4 * 5120 * 512
    copies = 3 * (mask + rows) * 3  # on two of them, and in main memory
    streamed = 2 * shape(case.target).layer_bytes[0]  # through both
    assert everything - without == copies - streamed


def test_a_target_that_is_cut_says_so() -> None:
    assert said(LARGE, gpus("24")).startswith("only 4")
    assert said(LARGE, gpus("24")).endswith(
        "of the model's 80 layers fit on NVIDIA GeForce RTX 4090, and llama3.2:1b Q4_K_M would"
        " displace some of them: a smaller quantization of the model would help"
    )
    assert "layers fit on 2 × NVIDIA GeForce RTX 3060" in said(LARGE, gpus("12+12"))
    long = replace(PAIR, n_ctx=32_768)
    assert said(long, gpus("8")).endswith("a num_ctx of 8192 would help")


def test_a_context_is_as_long_as_layers_allow_and_no_longer_than_the_least() -> None:
    case = replace(LARGE, drafter=None, n_ctx=0)
    lengths = [case.place(gpus(cards)).spec.n_ctx for cards in ("48", "48+48", "80", "24")]
    assert not replace(case, n_ctx=lengths[0] + 1024).place(gpus("48"), GiveUp.NOTHING).fits
    assert lengths == [21_504, 131_072, 124_928, 4096]


def test_a_cut_target_leaves_room_to_bring_a_layer_over() -> None:
    """Long prompts are read on the GPU, with the weights that lie elsewhere one after the other."""
    (card,) = gpus("24")
    placement = replace(LARGE, drafter=None).place([card])
    there = dict(placement.bytes_by_device)["GPU-0"]
    n_kept = len(shape(LARGE.target).layer_bytes) + 1 - placement.spec.n_gpu_layers
    footprint = model(LARGE.target).at(placement.spec.n_ctx)
    streamed = max(block.weights_bytes for block in footprint.blocks[:n_kept])
    assert there == PROCESS_BYTES + footprint.on_device(placement.spec.n_gpu_layers) + streamed
    reserve = int(0.04 * card.total_bytes)
    assert 0 <= card.free_bytes - reserve - there < streamed


@pytest.mark.parametrize("free_mib, n_layers", [(24_500, 81), (24_100, 81), (23_900, 76)])
def test_the_reserve_shrinks_before_a_layer_is_left_out(free_mib: int, n_layers: int) -> None:
    case = Case(target="qwen2.5:72b Q4_K_M", drafter="qwen2.5:0.5b Q4_K_M", n_ctx=4096)
    cards = [replace(card, free_bytes=free_mib * MIB) for card in gpus("24+24")]
    assert not case.place(cards, GiveUp.DRAFTER).fits
    placement = case.place(cards)
    there = layers(case, placement.spec)
    assert there["GPU-0"] + there["GPU-1"] == n_layers
    for card in cards:
        left = card.free_bytes - dict(placement.bytes_by_device)[card.id]
        assert left >= (384 if n_layers == 81 else 982) * MIB
    spec = replace(case, draft_device="cpu").place(cards).spec
    assert spec.draft_on_cpu


@pytest.mark.parametrize("free_mib", [1000, 1450])
def test_where_not_one_layer_pays_main_memory_holds_all(free_mib: int) -> None:
    """With 1450 MiB the output would fit, 411 MiB of it, and no more."""
    (card,) = gpus("8")
    nearly_full = replace(card, free_bytes=free_mib * MIB)
    placement = replace(PAIR, n_ctx=0).place([nearly_full])
    assert (placement.spec.devices, placement.spec.n_gpu_layers) == ((), 0)
    assert placement.spec.drafter == PAIR.drafter
    assert [device for device, _ in placement.bytes_by_device] == ["CPU"]
