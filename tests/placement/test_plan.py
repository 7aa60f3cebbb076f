"""Check each rule of placement; `placements.toml` tests their combinations."""

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


# ------------------------------------------------------------------------ request options


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
def test_main_gpu_is_an_index_of_the_present_gpus() -> None:
    assert replace(PAIR, main_gpu=1).place(gpus("24+24")).spec.devices == ("GPU-1",)
    with pytest.raises(InvalidOption, match=r'"main_gpu" is 2, .* there is 0 \(.*\), 1 \(.*\)$'):
        replace(PAIR, main_gpu=2).place(gpus("24+24"))


@pytest.mark.contract("options.runner")
def test_a_layer_count_above_the_models_is_all_layers() -> None:
    spec = replace(PAIR, num_gpu=999).place(gpus("24")).spec
    assert spec.n_gpu_layers == -1
    assert layers(PAIR, spec) == {"GPU-0": 33}


@pytest.mark.parametrize(
    "asked",
    [{"num_gpu": 0}, {"num_gpu": 9}, {"num_gpu": 999}, {"main_gpu": 3}, {"main_gpu": -1}],
)
def test_without_gpus_their_options_do_not_change_the_engine(
    asked: dict[str, Any],
) -> None:
    assert replace(PAIR, **asked).place(()).spec == PAIR.place(()).spec


def test_options_with_the_same_placement_give_the_same_engine() -> None:
    one, two = gpus("24"), gpus("24+24")
    everywhere = PAIR.place(one).spec
    assert replace(PAIR, num_gpu=33, main_gpu=0).place(one).spec == everywhere
    nowhere = replace(PAIR, num_gpu=0).place(two).spec
    assert nowhere == replace(PAIR, num_gpu=0, main_gpu=1).place(two).spec
    assert nowhere == replace(PAIR, main_gpu=-1).place(two).spec
    assert nowhere != everywhere
    assert replace(PAIR, main_gpu=1).place(two).spec.main_gpu == 1


def test_the_requested_number_of_layers_is_tried_even_if_it_does_not_fit() -> None:
    case = replace(LARGE, num_gpu=70)
    assert not case.place(gpus("24+8"), GiveUp.DRAFTER).fits
    spec = case.place(gpus("24+8")).spec
    assert (spec.n_gpu_layers, spec.drafter) == (70, None)
    there = layers(case, spec)
    assert there["GPU-0"] + there["GPU-1"] == 70
    assert there["GPU-0"] / there["GPU-1"] == pytest.approx(22.3 / 7.0, rel=0.1)


def test_the_requested_layers_are_split_if_one_gpu_is_too_small() -> None:
    case = replace(LARGE, num_gpu=60)
    placement = case.place(gpus("24+24"), GiveUp.NOTHING)
    assert placement.fits
    assert placement.spec.drafter == LARGE.drafter
    there = layers(case, placement.spec)
    assert (there[""], there["GPU-0"] + there["GPU-1"]) == (21, 60)


# ------------------------------------------------------------------------------- which GPUs


def test_a_projector_is_on_the_first_gpu_of_the_target() -> None:
    case = replace(PAIR, target="llama3.1:8b F16", draft_device="GPU-0", extra=1.0)
    spec = case.place(gpus("24+24")).spec
    assert (spec.devices, spec.draft_device) == (("GPU-1", "GPU-0"), 1)
    assert spec.tensor_split == (33.0, 0.0)


def test_a_drafter_on_its_targets_only_gpu_needs_no_device() -> None:
    spec = PAIR.place(gpus("24")).spec
    assert (spec.draft_device, spec.tensor_split, spec.n_gpu_layers) == (None, (), -1)


def test_a_drafter_stays_whole_if_its_target_is_cut() -> None:
    spec = replace(PAIR, num_gpu=5).place(gpus("24")).spec
    assert (spec.n_gpu_layers, spec.devices, spec.draft_device) == (5, ("GPU-0",), 0)


def test_spread_uses_all_gpus_with_enough_memory() -> None:
    spread = replace(PAIR, spread=True)
    assert set(layers(PAIR, spread.place(gpus("24+24+24")).spec)) == {"GPU-0", "GPU-1", "GPU-2"}
    full = replace(gpus("24")[0], index=1, id="GPU-1", free_bytes=500 * MIB)
    assert set(layers(PAIR, spread.place((*gpus("24"), full)).spec)) == {"GPU-0"}


def test_a_split_uses_the_emptiest_gpus() -> None:
    case = Case(target="qwen2.5:32b Q4_K_M", n_ctx=32_768)  # 26.3 GiB: 8 and 24 GB would do
    assert case.place(gpus("24+8+24")).spec.devices == ("GPU-0", "GPU-2")


def test_with_many_gpus_the_emptiest_are_tried() -> None:
    spec = LARGE.place(gpus("+".join(["8"] * 12)), GiveUp.NOTHING).spec
    assert spec.drafter == LARGE.drafter
    assert 7 <= len(spec.devices or ()) <= 8


def test_a_gpu_with_its_own_memory_is_preferred_to_an_integrated_one() -> None:
    shared = replace(integrated(16), index=1, id="Vulkan1")
    assert PAIR.place((*gpus("24"), shared)).spec.devices == ("GPU-0",)


def test_an_integrated_gpu_uses_main_memory() -> None:
    case = replace(PAIR, n_ctx=32_768)  # 8.4 and 1.9 GiB on the GPU, 0.5 GiB elsewhere
    assert replace(case, ram=17).place([integrated(16)], GiveUp.NOTHING).fits
    assert not replace(case, ram=14).place([integrated(16)], GiveUp.NOTHING).fits
    spec = replace(case, ram=14).place([integrated(16)], GiveUp.DRAFTER).spec
    assert (spec.devices, spec.drafter) == (("GPU-0",), None)


# ------------------------------------------------------------------------ drafters elsewhere


def test_a_drafter_for_main_memory_must_fit_there() -> None:
    case = replace(PAIR, draft_device="cpu")
    spec = case.place(gpus("8"), GiveUp.NOTHING).spec
    assert (spec.devices, spec.draft_on_cpu, spec.draft_device) == (("GPU-0",), True, None)
    spec = replace(case, ram=3).place(gpus("8")).spec
    assert (spec.drafter, spec.draft_on_cpu) == (None, False)
    assert "main memory has " in spec.no_pair_detail


def test_a_drafter_stays_in_main_memory_with_a_part_of_its_target() -> None:
    spec = replace(LARGE, draft_device="cpu").place(gpus("24")).spec
    assert spec.draft_on_cpu
    assert 0 < layers(LARGE, spec)["GPU-0"] < 81


def test_a_drafter_gets_the_named_gpu_even_if_its_target_is_on_none() -> None:
    small = replace(gpus("8")[0], free_bytes=1900 * MIB)  # one GiB of it may be used
    spec = replace(LARGE, draft_device="GPU-0", ram=128).place([small]).spec
    assert (spec.devices, spec.n_gpu_layers, spec.draft_device) == (("GPU-0",), 0, 0)
    assert spec.drafter == LARGE.drafter
    assert not spec.draft_on_cpu


@pytest.mark.parametrize("level", GiveUp)
def test_a_lost_device_for_drafters_is_reported_and_unloads_no_model(
    level: GiveUp,
) -> None:
    placement = replace(PAIR, draft_device="GPU-1").place(gpus("24"), level)
    assert placement.fits
    spec = placement.spec
    assert (spec.drafter, spec.devices) == (None, ("GPU-0",))
    assert spec.no_pair_detail == (
        "the device that SPECD_DRAFT_DEVICE names for llama3.2:1b Q4_K_M is gone"
    )


# -------------------------------------------------------------------------- losses


def test_refused_memory_increases_all_estimates() -> None:
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


def test_memory_refused_to_the_only_engine_counts_as_missing() -> None:
    """The request shrinks step by step, even if the GPU seems to have enough free memory."""
    case = replace(PAIR, n_ctx=0)
    given_up = [
        replace(case, n_refusals=n, n_refused_alone=n).place(gpus("80")).spec for n in range(4)
    ]
    assert [spec.drafter is None for spec in given_up] == [False, False, False, True]
    lengths = [spec.n_ctx for spec in given_up]
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[3] < lengths[0] / 2
    assert {spec.n_gpu_layers for spec in given_up} == {-1}


def test_a_requested_context_stays_and_layers_are_given_up() -> None:
    case = replace(PAIR, drafter=None, n_ctx=4096)
    first, second = (
        replace(case, n_refusals=n, n_refused_alone=n).place(gpus("24")).spec for n in range(2)
    )
    assert (first.n_ctx, second.n_ctx) == (4096, 4096)
    assert first.n_gpu_layers == -1
    assert 0 < second.n_gpu_layers < 30


def test_refused_main_memory_counts_as_missing_too() -> None:
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


def test_messages_suggest_only_options_that_help() -> None:
    assert said(replace(PAIR, drafter="llama3.1:8b Q8_0"), gpus("8")).endswith(" left for it")


def test_a_smaller_cache_of_the_target_does_not_help_a_drafter_elsewhere() -> None:
    """Only the drafter's own cache of 4 GiB counts there."""
    large, small = gpus("24+24")
    cards = [large, replace(small, free_bytes=3000 * MIB)]
    case = replace(PAIR, n_ctx=131_072, draft_device="GPU-1")
    assert said(case, cards).endswith(" left for it: a num_ctx of 16384 would help")
    assert replace(case, n_ctx=16_384).place(cards, GiveUp.NOTHING).spec.drafter
    assert replace(case, cache="q8_0").place(cards).spec.drafter is None


def test_suggested_options_make_the_drafter_fit() -> None:
    case = replace(PAIR, drafter="llama3.2:3b Q4_K_M")
    for better in (replace(case, n_ctx=2048), replace(case, cache="q8_0")):
        assert better.place(gpus("8"), GiveUp.NOTHING).spec.drafter
    small = Case(target="gemma3:12b Q4_K_M", drafter="gemma3:4b Q4_K_M", n_ctx=16_384)
    assert "q8_0" in said(small, gpus("12"))
    assert replace(small, cache="q8_0").place(gpus("12")).spec.drafter


def test_slots_that_take_the_memory_of_a_drafter_are_reported() -> None:
    case = replace(PAIR, n_slots=16)
    assert said(case, gpus("16")).endswith(
        ": a num_ctx of 2048 or OLLAMA_NUM_PARALLEL=8 or OLLAMA_KV_CACHE_TYPE=q8_0 would help"
    )
    assert replace(case, n_slots=8).place(gpus("16"), GiveUp.NOTHING).spec.drafter


def test_gpus_that_work_in_parallel_keep_copies_of_their_inputs() -> None:
    """GPUs and main memory each keep three more copies of a mask and of the rows of a batch."""
    case = Case(target="qwen2.5:32b Q4_K_M", n_ctx=32_768)
    whole, cut = (replace(case, num_gpu=n).place(gpus("24+24")) for n in (-1, 64))
    everything, without = (sum(dict(p.bytes_by_device).values()) for p in (whole, cut))
    mask, rows = 2 * 32_768 * 512, 4 * 5120 * 512
    copies = 3 * (mask + rows) * 3  # on two of them, and in main memory
    streamed = 2 * shape(case.target).layer_bytes[0]  # over both
    assert everything - without == copies - streamed


def test_a_cut_target_is_reported() -> None:
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


def test_a_cut_target_leaves_memory_to_stream_a_layer() -> None:
    """For long prompts, the GPU gets the weights from main memory one layer at a time."""
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
def test_if_no_layer_pays_main_memory_holds_all(free_mib: int) -> None:
    """With 1450 MiB free, only the output of 411 MiB would fit."""
    (card,) = gpus("8")
    nearly_full = replace(card, free_bytes=free_mib * MIB)
    placement = replace(PAIR, n_ctx=0).place([nearly_full])
    assert (placement.spec.devices, placement.spec.n_gpu_layers) == ((), 0)
    assert placement.spec.drafter == PAIR.drafter
    assert [device for device, _ in placement.bytes_by_device] == ["CPU"]
