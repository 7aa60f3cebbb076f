"""What a model takes, from the shape of its file: by part, and by where it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.placement.engine import footprints
from specd.placement.estimate import Footprint, footprint
from specd.store.kv_layout import LayerKv
from specd.store.shape import Experts, Layer, Shape, Width

MIB = 2**20
#: Llama 3.1 8B, whose output is its own matrix.
LLAMA = Shape(
    architecture="llama",
    layers=(Layer(weights_bytes=120 * MIB, kv_layout=LayerKv(key=1024, value=1024)),) * 32,
    input_bytes=280 * MIB,
    output_bytes=410 * MIB,
    tied_bytes=0,
    n_ctx_train=131072,
    n_vocab=128256,
    n_heads=32,
    width=Width(n_embd=4096, n_ff=14336, query=4096),
)
TIED = replace(LLAMA, output_bytes=1 * MIB, tied_bytes=280 * MIB)
HYBRID = replace(
    LLAMA,
    architecture="qwen35",
    layers=(
        Layer(weights_bytes=MIB, kv_layout=LayerKv(state=MIB)),
        Layer(weights_bytes=MIB, kv_layout=LayerKv(key=64, value=64)),
    ),
    is_recurrent=True,
)


def taken(shape: Shape = LLAMA, **changed: Any) -> Footprint:
    asked: dict[str, Any] = {
        "n_ctx": 8192,
        "n_slots": 1,
        "n_batch": 512,
        "kv_cache_type": "f16",
        "n_outputs": 17,
        "flash_attention": None,
        "n_rewind": 0,
    }
    return footprint(shape, **(asked | changed))


# -------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(
    "kv_cache_type, mib",
    [("f32", 2048), ("f16", 1024), ("bf16", 1024), ("q8_0", 544), ("q5_0", 352), ("q4_0", 288)],
)
def test_a_cache_is_as_large_as_its_numbers_are(kv_cache_type: str, mib: int) -> None:
    assert taken(kv_cache_type=kv_cache_type).cache_bytes == mib * MIB


@pytest.mark.parametrize("name", core.KV_CACHE_TYPES)
def test_every_format_of_a_cache_is_ggmls(name: str) -> None:
    n_numbers, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    assert taken(kv_cache_type=name).cache_bytes == 8192 * 64 * 1024 // n_numbers * n_bytes


def test_cells_come_in_steps_for_all_slots_together() -> None:
    def per_cell(**changed: Any) -> float:
        return taken(**changed).cache_bytes / (32 * 2 * 1024 * 2)

    assert per_cell(n_ctx=8192, n_slots=3) == 3 * 8192
    assert per_cell(n_ctx=1000) == 1024
    assert per_cell(n_ctx=100, n_slots=5) == 512


def test_behind_a_window_nothing_is_kept_but_what_a_pass_needs() -> None:
    looking = Layer(weights_bytes=0, kv_layout=LayerKv(key=512, value=512, window=1024))
    shape = replace(LLAMA, layers=(looking,))

    def cells(**changed: Any) -> float:
        return taken(shape, **changed).cache_bytes / (2 * 1024)

    assert cells(n_ctx=8192) == 1024 + 512
    assert cells(n_ctx=8192, n_slots=4) == 4 * 1024 + 512
    assert cells(n_ctx=8192, n_sequences=2) == 2 * 1024 + 512
    assert cells(n_ctx=1024) == 1024


def test_without_flash_attention_values_are_as_high_as_the_largest() -> None:
    layers = tuple(Layer(weights_bytes=0, kv_layout=LayerKv(key=32, value=n)) for n in (32, 64))
    shape = replace(LLAMA, layers=layers)
    assert taken(shape).cache_bytes == 2 * 8192 * (32 + 32 + 32 + 64)
    assert taken(shape, flash_attention=False).cache_bytes == 2 * 8192 * 2 * (32 + 64)


def test_states_are_kept_for_each_sequence_and_each_step_back() -> None:
    attention = 2 * 128 * 8192
    assert taken(HYBRID).cache_bytes == 4 * MIB + attention
    assert taken(HYBRID, n_rewind=3).cache_bytes == 4 * 4 * MIB + attention
    two_ways = taken(HYBRID, n_slots=1, n_sequences=2)
    assert two_ways.cache_bytes == 2 * 4 * MIB + attention
    fixed = replace(HYBRID, can_rewind=False)
    assert taken(fixed, n_rewind=3).cache_bytes == 4 * MIB + attention


def test_rows_of_a_cache_come_in_blocks_of_32_numbers() -> None:
    shape = replace(LLAMA, layers=(Layer(weights_bytes=0, kv_layout=LayerKv(key=33, value=32)),))
    assert taken(shape, kv_cache_type="q8_0").cache_bytes == 8192 * 3 * 34


def test_a_pass_has_as_many_rows_of_every_sequence() -> None:
    odd, even = (taken(n_slots=3, n_batch=n) for n in (512, 513))
    assert odd.device_scratch_bytes == even.device_scratch_bytes
    assert odd.staged_bytes == even.staged_bytes


# ----------------------------------------------------------------------- where it lies


def test_the_output_is_the_first_on_a_device_and_the_input_never_comes() -> None:
    found = taken()
    block = 120 * MIB + 32 * MIB
    rest = 410 * MIB + found.device_scratch_bytes
    assert [found.on_device(n) for n in (0, 1, 2, 33, 40, -1)] == [
        0,
        rest,
        rest + block,
        *[rest + 32 * block] * 3,
    ]
    kv_layout = 280 * MIB + found.host_scratch_bytes + found.staged_bytes
    assert [found.in_main_memory(n) for n in (1, 2, 33, -1)] == [
        kv_layout + 32 * block,
        kv_layout + 31 * block,
        kv_layout,
        kv_layout,
    ]


def test_tied_embeddings_lie_on_the_device_as_well() -> None:
    found = taken(TIED)
    assert found.total_bytes == found.in_main_memory(0)
    assert found.weights_bytes == 32 * 120 * MIB + 281 * MIB
    both = found.on_device(-1) + found.in_main_memory(-1)
    assert both == found.total_bytes + 280 * MIB + found.staged_bytes


def test_projector_and_adapters_go_where_a_device_is() -> None:
    bare, seeing = taken(), taken(extra_bytes=MIB)
    assert seeing.on_device(1) - bare.on_device(1) == MIB
    assert seeing.in_main_memory(1) == bare.in_main_memory(1)
    assert seeing.total_bytes - bare.total_bytes == MIB


def test_without_a_head_no_device_has_rows_of_logits() -> None:
    headless = replace(LLAMA, has_head=False)
    few, many = (taken(headless, n_outputs=n) for n in (1, 2000))
    assert few.device_scratch_bytes == many.device_scratch_bytes
    few, many = (taken(LLAMA, n_outputs=n) for n in (1, 2000))
    assert few.device_scratch_bytes < many.device_scratch_bytes


@given(n_layers=st.integers(-1, 40), tied=st.booleans())
def test_nothing_is_lost_between_device_and_main_memory(n_layers: int, tied: bool) -> None:
    found = taken(TIED if tied else LLAMA, extra_bytes=5)
    both = found.on_device(n_layers) + found.in_main_memory(n_layers)
    twice = found.tied_bytes + found.staged_bytes if n_layers else 0
    assert both == found.total_bytes + twice


# ------------------------------------------------------------------------------ scratch


def scratch(shape: Shape = LLAMA, **changed: Any) -> float:
    """MiB."""
    return taken(shape, **changed).device_scratch_bytes / MIB


def test_scratch_of_a_known_model() -> None:
    """As llama.cpp lays it out for an 8B llama, but for the small change."""
    assert scratch(n_ctx=4096) == 120
    assert scratch(n_ctx=4096, n_batch=256) == 60
    assert scratch(n_ctx=8192, n_slots=4) == 148
    assert scratch(n_ctx=4096, flash_attention=False) == 308
    assert scratch(n_ctx=4096, n_outputs=512) == pytest.approx(4 + 16 + 250.5)


def test_scratch_of_experts_counts_those_that_are_asked() -> None:
    wide = replace(
        LLAMA,
        architecture="qwen3moe",
        n_heads=32,
        width=Width(n_embd=2048, query=4096),
        experts=Experts(n_all=128, n_used=8, n_ff=768),
    )
    assert scratch(wide, n_ctx=4096) == 92


def test_results_are_read_in_main_memory() -> None:
    assert taken(n_outputs=100).host_scratch_bytes == 4 * 100 * 128256


SIZES = st.sampled_from([256, 1000, 4096, 32768, 131072])


@given(
    n_ctx=SIZES, more=SIZES, n_slots=st.integers(1, 8), flash=st.sampled_from([None, True, False])
)
def test_more_context_never_takes_less(
    n_ctx: int, more: int, n_slots: int, flash: bool | None
) -> None:
    less, larger = (
        taken(HYBRID, n_ctx=n, n_slots=n_slots, flash_attention=flash)
        for n in sorted((n_ctx, n_ctx + more))
    )
    assert less.total_bytes < larger.total_bytes
    assert less.on_device(-1) < larger.on_device(-1)


# ------------------------------------------------------------------------- as it is loaded

SPEC = core.EngineSpec(weights="w", n_ctx=8192, n_slots=2)
SMALL = replace(LLAMA, layers=LLAMA.layers[:4], n_ctx_train=2048)


def test_a_drafter_remembers_as_much_as_its_target() -> None:
    target, drafter = footprints(SPEC, LLAMA, SMALL)
    assert drafter is not None
    assert drafter.cache_bytes * 8 == target.cache_bytes
    _, drafter = footprints(SPEC, replace(LLAMA, n_ctx_train=1024), SMALL)
    assert drafter is not None
    assert drafter.cache_bytes == 2 * 1024 * 4 * 2 * 2 * 1024


def test_no_model_remembers_more_than_it_was_trained_to() -> None:
    short = replace(LLAMA, n_ctx_train=1024)
    assert footprints(SPEC, short)[0] == footprints(replace(SPEC, n_ctx=1024), short)[0]


def test_a_recurrent_drafter_has_two_sequences_for_each_slot() -> None:
    _, drafter = footprints(SPEC, LLAMA, HYBRID)
    assert drafter is not None
    assert drafter.blocks[0].cache_bytes == 4 * MIB * 2 * 2
    _, still = footprints(replace(SPEC, max_draft=0), LLAMA, HYBRID)
    assert still is not None
    assert still.blocks[0].cache_bytes == 4 * MIB * 2


@pytest.mark.parametrize(
    "weights_bytes, changed, n_states",
    [
        (MIB, {}, 4),
        (2048 * MIB, {}, 17),
        (640 * MIB, {}, 11),
        (2048 * MIB, {"max_draft": 5}, 6),
        (2048 * MIB, {"no_pair_reason": core.NoPair.DISABLED_BY_USER}, 1),
        (2048 * MIB, {"n_ctx": 4, "n_batch": 4}, 17),
    ],
)
def test_a_recurrent_target_keeps_the_states_that_it_can_afford(
    weights_bytes: int, changed: dict[str, Any], n_states: int
) -> None:
    layers = (Layer(weights_bytes=weights_bytes, kv_layout=LayerKv(state=MIB)),)
    shape = replace(HYBRID, layers=layers, input_bytes=0, output_bytes=0)
    target, _ = footprints(replace(SPEC, **changed), shape)
    assert target.cache_bytes == 4 * MIB * 2 * n_states


def test_images_whose_tokens_see_each_other_share_a_pass() -> None:
    gemma = replace(LLAMA, architecture="gemma3")
    seeing = replace(SPEC, projector="p", n_batch=512)
    assert footprints(seeing, gemma)[0] == footprints(replace(SPEC, n_batch=1152), gemma)[0]
    assert footprints(seeing, LLAMA)[0] == footprints(SPEC, LLAMA)[0]


def test_vectors_are_made_of_whole_texts_and_of_the_last_token_in_pieces() -> None:
    spec = replace(SPEC, embeds=True)
    whole, none = footprints(spec, LLAMA, SMALL)
    assert none is None
    assert whole.host_scratch_bytes == 4 * 2048 * (128256 + 4096)
    ends = replace(LLAMA, pools_last_token=True)
    assert footprints(spec, ends)[0].host_scratch_bytes == 4 * 512 * (128256 + 4096)
    assert footprints(spec, ends)[0].cache_bytes == 8192 * 32 * 2 * 2 * 1024
