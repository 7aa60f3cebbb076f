"""Check the cost of a draft step relative to a pass of the target, by device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.pairs.discovery import (
    CPU_FLOOR_BYTES,
    GPU_LEAST_PARAMETERS,
    MAX_STEP_COST,
    is_too_fast_to_draft,
    step_cost,
)
from specd.store.gguf_metadata import GgufMetadata


def sized(read_bytes: int, n_parameters: int, n_active_parameters: int) -> GgufMetadata:
    return GgufMetadata(
        architecture="llama",
        n_ctx_train=0,
        n_embd=0,
        n_parameters=n_parameters,
        file_type="",
        chat_template=None,
        bos_token="",
        eos_token="",
        has_pooling=False,
        has_vision=False,
        has_audio=False,
        n_active_parameters=n_active_parameters,
        read_bytes=read_bytes,
    )


def dense(n_parameters: float) -> GgufMetadata:
    """Return a dense model with one byte for each parameter."""
    n = int(n_parameters)
    return sized(n, n, n)


@pytest.mark.parametrize(
    "target, drafter, on_gpu, cost",
    [
        (8e9, 2e9, True, 0.25),
        (8e9, 2e9, False, 0.2507),
        (600e6, 1e6, True, 1.0),  # the launch dominates, not the weights
        (600e6, 1e6, False, 0.0148),
        (600e6, 150e6, False, 0.2599),
        (20e6, 1e6, False, 1.0),  # the threads' synchronization dominates
        (4e9, 1e6, True, 0.00025),
    ],
)
def test_the_cost_of_a_step(target: float, drafter: float, on_gpu: bool, cost: float) -> None:
    assert step_cost(dense(target), dense(drafter), on_gpu=on_gpu) == pytest.approx(cost, rel=0.01)


sizes = st.integers(0, 10**12)


@given(sizes, sizes, sizes, st.booleans())
def test_a_larger_drafter_costs_more_and_none_more_than_a_pass_of_its_own_size(
    target: int, drafter: int, larger: int, on_gpu: bool
) -> None:
    costs = [
        step_cost(dense(target), dense(n), on_gpu=on_gpu)
        for n in sorted((drafter, max(drafter, larger)))
    ]
    assert costs == sorted(costs)
    if drafter <= target:
        assert 0.0 <= costs[0] <= 1.0


@given(sizes, st.booleans())
def test_a_target_is_too_quick_where_even_a_drafter_without_weights_would_cost_too_much(
    target: int, on_gpu: bool
) -> None:
    model = dense(target)
    nothing = step_cost(model, dense(0), on_gpu=on_gpu)
    assert is_too_fast_to_draft(model, on_gpu=on_gpu) == (nothing > MAX_STEP_COST)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_mixture_of_few_active_parameters_is_too_quick_everywhere(on_gpu: bool) -> None:
    active = GPU_LEAST_PARAMETERS - 1
    assert is_too_fast_to_draft(sized(active, 10 * active, active), on_gpu=on_gpu)
    assert not is_too_fast_to_draft(sized(active + 1, 10 * active, active + 1), on_gpu=on_gpu)
    assert is_too_fast_to_draft(dense(active), on_gpu=on_gpu) == on_gpu
    assert not is_too_fast_to_draft(dense(4 * CPU_FLOOR_BYTES), on_gpu=False)
