"""The controller's speed against that of the best fixed draft length, over simulated texts."""

from __future__ import annotations

import random
import statistics

import pytest

from specd.core import SpeculationMode
from specd.engine.speculative.controller import MODEL
from specd.engine.speculative.cost_model import CostModel
from tests.engine.speculative.simulated_text import CPU, GPU, Text, make, run


def speed_of(
    costs: dict[int, float], rate: float, n_max: int | None, mode: SpeculationMode, seed: int = 3
) -> float:
    controller = make(costs)
    controller.open(1, n_max, mode, 0.8, [MODEL])
    text = Text(rate, random.Random(seed))
    return run(controller, CostModel(costs, 0.05), text, 1500, n_max=n_max, mode=mode).speed


def mean_speed(
    costs: dict[int, float], rate: float, n_max: int | None, mode: SpeculationMode
) -> float:
    return statistics.mean(speed_of(costs, rate, n_max, mode, seed) for seed in range(3))


@pytest.mark.parametrize("costs", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.8, 0.95])
def test_auto_comes_near_the_best_fixed_length_in_hindsight(
    costs: dict[int, float], rate: float
) -> None:
    best = max(
        mean_speed(costs, rate, k, SpeculationMode.FIXED if k else SpeculationMode.AUTO)
        for k in (0, 1, 2, 3, 4, 6, 8)
    )
    assert mean_speed(costs, rate, None, SpeculationMode.AUTO) >= 0.95 * best
