"""Check the estimated memory of a model, by part and by device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.placement.estimate import Footprint, simulated_footprint, upper_bound
from specd.store.shape import Shape

MIB = 2**20
#: Llama 3.1 8B, which has a separate output matrix.
LLAMA = Shape(
    architecture="llama",
    layer_bytes=(120 * MIB,) * 32,
    input_bytes=280 * MIB,
    output_bytes=410 * MIB,
    tied_bytes=0,
    n_ctx_train=131072,
    n_vocab=128256,
    n_heads=32,
    n_embd=4096,
    n_ff=14336,
    n_query=4096,
    n_key=1024,
    n_value=1024,
)
TIED = replace(LLAMA, output_bytes=1 * MIB, tied_bytes=280 * MIB)
HYBRID = replace(LLAMA, architecture="qwen35", is_recurrent=True)
SPEC = core.EngineSpec(weights="w", n_ctx=8192)


def bound(shape: Shape = LLAMA, **changed: Any) -> Footprint:
    extra_bytes = changed.pop("extra_bytes", 0)
    is_drafter = changed.pop("is_drafter", False)
    spec = replace(SPEC, **changed)
    return upper_bound(spec, shape, is_drafter=is_drafter, extra_bytes=extra_bytes)


# -------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(
    "kv_cache_type, mib",
    [("f32", 2048), ("f16", 1024), ("bf16", 1024), ("q8_0", 544), ("q5_0", 352), ("q4_0", 288)],
)
def test_a_cache_has_a_row_per_token_and_layer(kv_cache_type: str, mib: int) -> None:
    assert bound(kv_cache_type=kv_cache_type).cache_bytes == mib * MIB


@pytest.mark.parametrize("name", core.KV_CACHE_TYPES)
def test_the_size_of_every_cache_format_matches_ggml(name: str) -> None:
    n_numbers, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    assert bound(kv_cache_type=name).cache_bytes == 8192 * 64 * 1024 // n_numbers * n_bytes


def test_cells_come_in_steps_for_all_slots_together() -> None:
    def per_cell(**changed: Any) -> float:
        return bound(**changed).cache_bytes / (32 * 2 * 1024 * 2)

    assert per_cell(n_ctx=8192, n_slots=3) == 3 * 8192
    assert per_cell(n_ctx=1000) == 1024
    assert per_cell(n_ctx=100, n_slots=5) == 512


def test_rows_of_a_cache_come_in_blocks_of_32_numbers() -> None:
    shape = replace(LLAMA, layer_bytes=(0,), n_key=33, n_value=32)
    assert bound(shape, kv_cache_type="q8_0").cache_bytes == 8192 * 3 * 34


def test_recurrent_states_may_take_an_eighth_of_the_weights_per_sequence() -> None:
    states = 32 * 120 * MIB // 8
    assert bound(HYBRID).cache_bytes == bound(LLAMA).cache_bytes + states
    assert bound(HYBRID, is_drafter=True).cache_bytes == bound(LLAMA).cache_bytes + 2 * states


# ----------------------------------------------------------------------- devices


def test_the_output_is_the_first_on_a_device_and_the_input_never_comes() -> None:
    found = bound()
    block = 120 * MIB + 32 * MIB
    rest = 410 * MIB + found.device_scratch_bytes
    assert [found.on_device(n) for n in (0, 1, 2, 33, 40, -1)] == [
        0,
        rest,
        rest + block,
        *[rest + 32 * block] * 3,
    ]
    stays = 280 * MIB + found.host_scratch_bytes + found.staged_bytes
    assert [found.in_main_memory(n) for n in (1, 2, 33, -1)] == [
        stays + 32 * block,
        stays + 31 * block,
        stays,
        stays,
    ]


def test_tied_embeddings_lie_on_the_device_as_well() -> None:
    found = bound(TIED)
    assert found.total_bytes == found.in_main_memory(0)
    assert found.weights_bytes == 32 * 120 * MIB + 281 * MIB
    both = found.on_device(-1) + found.in_main_memory(-1)
    assert both == found.total_bytes + 280 * MIB + found.staged_bytes


def test_projector_and_adapters_go_to_a_device() -> None:
    bare, seeing = bound(), bound(extra_bytes=MIB)
    assert seeing.on_device(1) - bare.on_device(1) == MIB
    assert seeing.in_main_memory(1) == bare.in_main_memory(1)
    assert seeing.total_bytes - bare.total_bytes == MIB


def test_without_a_head_no_device_has_rows_of_logits() -> None:
    headless = replace(LLAMA, has_head=False)
    few, many = (bound(replace(headless, n_vocab=n)) for n in (1, 2000))
    assert few.device_scratch_bytes == many.device_scratch_bytes
    few, many = (bound(replace(LLAMA, n_vocab=n)) for n in (1, 2000))
    assert few.device_scratch_bytes < many.device_scratch_bytes


@given(n_layers=st.integers(-1, 40), tied=st.booleans())
def test_nothing_is_lost_between_device_and_main_memory(n_layers: int, tied: bool) -> None:
    found = bound(TIED if tied else LLAMA, extra_bytes=5)
    both = found.on_device(n_layers) + found.in_main_memory(n_layers)
    twice = found.tied_bytes + found.staged_bytes if n_layers else 0
    assert both == found.total_bytes + twice


# ------------------------------------------------------------------------------ scratch


def test_the_bound_of_scratch_is_near_a_known_model() -> None:
    """For Llama 3.1 8B at 4096 tokens, llama.cpp allocates 120 MiB (308 without flash attn)."""
    assert 120 <= bound(n_ctx=4096).device_scratch_bytes / MIB <= 256
    assert 308 <= bound(n_ctx=4096, flash_attention=False).device_scratch_bytes / MIB <= 512


def test_logits_are_read_in_main_memory() -> None:
    assert bound(n_slots=2).host_scratch_bytes == 4 * 2 * 17 * 128256


def test_an_embedding_model_has_results_for_every_row_of_a_pass() -> None:
    assert bound(embeds=True).host_scratch_bytes == 4 * 2048 * (128256 + 4096)
    headless = bound(replace(LLAMA, has_head=False, n_vocab=30_000), embeds=True)
    assert headless.host_scratch_bytes == 4 * 8192 * (30_000 + 4096)


SIZES = st.sampled_from([256, 1000, 4096, 32768, 131072])


@given(
    n_ctx=SIZES, more=SIZES, n_slots=st.integers(1, 8), flash=st.sampled_from([None, True, False])
)
def test_more_context_never_takes_less(
    n_ctx: int, more: int, n_slots: int, flash: bool | None
) -> None:
    less, larger = (
        bound(HYBRID, n_ctx=n, n_slots=n_slots, flash_attention=flash)
        for n in sorted((n_ctx, n_ctx + more))
    )
    assert less.total_bytes < larger.total_bytes
    assert less.on_device(-1) < larger.on_device(-1)


# ---------------------------------------------------------------------------- simulated


def test_a_simulated_cache_is_counted_per_layer() -> None:
    memory = core.ContextMemory(
        n_ctx=8192,
        layers=((1, 10), (1, 5), (3, 7), (99, 1000)),
        n_cells=8192,
        scratch_bytes=100,
        results_bytes=30,
    )
    found = simulated_footprint(SPEC, LLAMA, memory, extra_bytes=9)
    assert [block.cache_bytes for block in found.blocks[:5]] == [0, 15, 0, 7, 0]
    assert found.cache_bytes == 22
    assert (found.device_scratch_bytes, found.host_scratch_bytes) == (100, 30)
    assert (found.weights_bytes, found.extra_bytes) == (bound().weights_bytes, 9)
    masks, rows = 2 * 8192 * 512, 4 * 4096 * 512
    assert (found.staged_bytes, found.transfer_bytes) == (masks + 2 * rows, masks + rows)
