"""Check the defaults: context, number of models, threads."""

from __future__ import annotations

import pytest

from specd import core
from specd.placement import Cpu, Defaults, Device
from specd.placement.defaults import GIB, num_ctx_for

CPU = Cpu(total_bytes=8, available_bytes=8, n_cores=6)
ASKED = core.EngineSpec(weights="w", n_ctx=0, n_threads=0)


def gpu(gib: int) -> Device:
    return Device(vendor="nvidia", index=0, name="x", uuid="u", total_bytes=gib * GIB, free_bytes=0)


@pytest.mark.contract("sched.default-ctx")
@pytest.mark.parametrize(
    "gib, n_ctx", [(0, 4096), (22, 4096), (23, 32768), (46, 32768), (47, 262144)]
)
def test_the_context_follows_ollamas_tiers(gib: int, n_ctx: int) -> None:
    assert num_ctx_for(gib * GIB) == n_ctx


@pytest.mark.contract("sched.default-ctx", "sched.max-loaded")
def test_the_tiers_add_up_all_gpus() -> None:
    defaults = Defaults(devices=[gpu(24), gpu(24)], cpu=CPU)
    assert defaults.fill(ASKED, 0).n_ctx == 262144
    assert defaults.max_loaded == 6


@pytest.mark.contract("sched.max-loaded")
def test_without_a_gpu_three_models_may_be_loaded() -> None:
    assert Defaults(devices=[], cpu=CPU).max_loaded == 3


@pytest.mark.contract("options.num-ctx", "options.precedence", "env.context-length")
@pytest.mark.parametrize(
    "asked, setting, trained, n_ctx",
    [(0, 0, 0, 4096), (0, 8192, 0, 8192), (512, 8192, 0, 512), (0, 8192, 2048, 2048), (1, 0, 9, 4)],
)
def test_the_request_wins_over_the_setting_and_training_over_both(
    asked: int, setting: int, trained: int, n_ctx: int
) -> None:
    spec = core.EngineSpec(weights="w", n_ctx=asked)
    assert Defaults(devices=[], cpu=CPU, n_ctx=setting).fill(spec, trained).n_ctx == n_ctx


@pytest.mark.contract("sched.oom")
def test_a_context_shrinks_to_the_smallest_tier_unless_the_user_set_it() -> None:
    machine = Defaults(devices=[], cpu=CPU)
    assert [machine.min_ctx(n) for n in (262_144, 4096, 512)] == [4096, 4096, 512]
    assert Defaults(devices=[], cpu=CPU, n_ctx=262_144).min_ctx(262_144) == 262_144


@pytest.mark.contract("options.num-ctx-vision")
@pytest.mark.parametrize("asked, trained, n_ctx", [(64, 0, 2048), (4096, 0, 4096), (64, 512, 512)])
def test_a_vision_model_has_room_for_images(asked: int, trained: int, n_ctx: int) -> None:
    spec = core.EngineSpec(weights="w", n_ctx=asked, projector="p")
    assert Defaults(devices=[], cpu=CPU).fill(spec, trained).n_ctx == n_ctx


def test_threads_are_the_physical_cores_unless_chosen() -> None:
    defaults = Defaults(devices=[], cpu=CPU)
    assert defaults.fill(ASKED, 0).n_threads == 6
    assert defaults.fill(core.EngineSpec(weights="w", n_threads=2), 0).n_threads == 2
