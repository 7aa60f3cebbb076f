"""Test the choice of llama.cpp's build, and which machines share it."""

from __future__ import annotations

import pytest

from scripts.accelerator import (
    CMAKE_ARGS,
    AcceleratorChoice,
    BuildHost,
    choose,
    cpu_features,
    fingerprint,
)

PIN = "llama-cpp-python==1.2.3"
GPU = "NVIDIA H100, 9.0"


@pytest.mark.parametrize(
    "machine,asked,accelerator",
    [
        (BuildHost("Linux"), "", "cpu"),
        (BuildHost("Darwin"), "", "metal"),
        (BuildHost("Linux", nvcc="/bin/nvcc", gpus=(GPU,)), "", "cuda"),
        (BuildHost("Linux", nvcc="/bin/nvcc"), "", "cpu"),
        (BuildHost("Linux", gpus=(GPU,)), "", "cpu"),
        (BuildHost("Linux", has_amd_gpu=True), "", "cpu"),
        (BuildHost("Linux"), "cuda", "cuda"),
        (BuildHost("Linux", nvcc="/bin/nvcc", gpus=(GPU,)), "vulkan", "vulkan"),
        (BuildHost("Darwin"), "cpu", "cpu"),
    ],
)
def test_the_accelerator_follows_the_machine_unless_one_is_asked_for(
    machine: BuildHost, asked: str, accelerator: str
) -> None:
    choice = choose(machine, asked, PIN)
    assert choice.accelerator == accelerator
    assert choice.reason


def test_a_toolkit_without_a_gpu_gives_a_hint_to_force_it() -> None:
    assert "SPECD_ACCEL=cuda" in choose(BuildHost("Linux", nvcc="/bin/nvcc"), "", PIN).hint


def test_a_gpu_without_a_toolkit_gives_a_hint_about_prebuilt_wheels() -> None:
    hint = choose(BuildHost("Linux", gpus=(GPU,)), "", PIN).hint
    assert PIN in hint
    assert "prebuilt wheels" in hint


def test_an_unknown_accelerator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError) as caught:
        choose(BuildHost("Linux"), "tpu", PIN)
    assert all(name in str(caught.value) for name in ("SPECD_ACCEL='tpu'", *CMAKE_ARGS))


def test_the_features_of_a_cpu_are_found_in_any_order() -> None:
    assert cpu_features("model : x\nflags\t\t: sse2 avx2 fma\n") == "avx2 fma sse2"
    assert cpu_features("Features : fp asimd\n") == "asimd fp"
    assert cpu_features("nothing") == ""


def test_builds_for_other_accelerators_gpus_and_cmake_options_are_not_shared() -> None:
    old, new = BuildHost("Linux", gpus=(GPU,)), BuildHost("Linux", gpus=("NVIDIA B200, 10.0",))
    cuda, cpu = AcceleratorChoice("cuda", ""), AcceleratorChoice("cpu", "")
    names = {
        fingerprint(cuda, old, ""),
        fingerprint(cuda, new, ""),
        fingerprint(cpu, old, ""),
        fingerprint(cpu, old, "-DGGML_BLAS=on"),
    }
    assert len(names) == 4
    assert fingerprint(cpu, old, "") == fingerprint(cpu, new, "")
