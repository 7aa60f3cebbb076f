"""The environment of an engine process: visible GPUs, threads and secrets."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from specd import core
from specd.runner import Process
from specd.runner.environment import environment, visibility_variables

ROOT = Path(__file__).parents[2]
FAKE = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.engine")
ALL_HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "",
}


@pytest.mark.parametrize(
    "devices, variables",
    [
        (None, {}),
        ((), ALL_HIDDEN),
        (("GPU-b",), ALL_HIDDEN | {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
        (("GPU-b", "GPU-a"), ALL_HIDDEN | {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}),
        (("MIG-x",), ALL_HIDDEN | {"CUDA_VISIBLE_DEVICES": "MIG-x"}),
        (("Vulkan1", "Vulkan0"), {}),
        (("CUDA0",), {}),
    ],
)
def test_gpus_that_an_engine_may_not_use_are_hidden_from_it(
    devices: tuple[str, ...] | None, variables: dict[str, str]
) -> None:
    assert visibility_variables(devices) == variables


@pytest.mark.parametrize(
    "devices, visible", [(None, "0,1"), ((), ""), (("GPU-b", "GPU-a"), "GPU-b,GPU-a")]
)
async def test_an_engine_sees_only_the_gpus_of_its_spec(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...] | None, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    process = Process(core.EngineSpec(weights="fine", devices=devices), command=FAKE)
    try:
        await process.ready()
        environ = await asyncio.to_thread(lambda: psutil.Process(process.pid).environ())
    finally:
        process.stop()
        await process.ended()
    assert environ["CUDA_VISIBLE_DEVICES"] == visible
    assert environ["GGML_NO_BACKTRACE"] == "1"


def test_the_users_thread_settings_win_and_fixed_variables_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("GGML_NO_BACKTRACE", "0")
    assert environment()["GOMP_SPINCOUNT"] == "1000"
    assert environment()["GGML_NO_BACKTRACE"] == "1"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment()["GOMP_SPINCOUNT"] == "7"


def test_an_engine_does_not_get_the_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECD_API_KEYS", "sk-0123456789abcdef")
    monkeypatch.setenv("OLLAMA_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("SPECD_DEMO", "1")
    told = environment()
    assert told["SPECD_DEMO"] == "1"
    assert "sk-0123456789abcdef" not in told.values()
