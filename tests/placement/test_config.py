"""Check the settings for the placement of models."""

from __future__ import annotations

import pytest

from specd.errors import BadSetting
from specd.placement.config import PlacementConfig, placement_config
from specd.settings import Settings
from tests.placement.published_models import gpus

TWO = gpus("24+8")


def read(monkeypatch: pytest.MonkeyPatch, **variables: str) -> PlacementConfig:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return placement_config(Settings(), TWO)


def test_the_default_placement_is_automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch) == PlacementConfig(overhead_bytes=0, spread=False, draft_device="auto")


@pytest.mark.contract("env.gpu-overhead", "env.sched-spread")
def test_ollamas_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read_wishes = read(monkeypatch, OLLAMA_GPU_OVERHEAD="1000", OLLAMA_SCHED_SPREAD="1")
    assert read_wishes == PlacementConfig(overhead_bytes=1000, spread=True)


@pytest.mark.parametrize(
    "asked, device",
    [("auto", "auto"), ("cpu", "cpu"), ("1", "GPU-1"), ("GPU-0", "GPU-0"), ("CUDA1", "GPU-1")],
)
def test_drafters_have_a_device(monkeypatch: pytest.MonkeyPatch, asked: str, device: str) -> None:
    assert read(monkeypatch, SPECD_DRAFT_DEVICE=asked).draft_device == device


@pytest.mark.parametrize("asked, fault", [("2", "names no device"), ("GPU", "several devices")])
def test_a_missing_device_is_an_invalid_setting(
    monkeypatch: pytest.MonkeyPatch, asked: str, fault: str
) -> None:
    with pytest.raises(BadSetting) as raised:
        read(monkeypatch, SPECD_DRAFT_DEVICE=asked)
    assert fault in str(raised.value)
    assert str(raised.value).endswith(
        "set it to auto, cpu, or one of:"
        " 0 (NVIDIA GeForce RTX 4090, GPU-0), 1 (NVIDIA GeForce RTX 4060, GPU-1)"
    )


def test_without_devices_drafters_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECD_DRAFT_DEVICE", "0")
    with pytest.raises(
        BadSetting, match=r"this machine has no GPU that llama\.cpp can use; set it to auto or cpu"
    ):
        placement_config(Settings(), ())
