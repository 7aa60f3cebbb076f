"""Choose the accelerator that llama.cpp is built for, and name builds that machines can share."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Accelerator → options for CMake.
CMAKE_ARGS = {
    "cuda": ("-DGGML_CUDA=on",),
    "vulkan": ("-DGGML_VULKAN=on",),
    "rocm": ("-DGGML_HIP=on",),
    "metal": ("-DGGML_METAL=on",),
    "cpu": ("-DGGML_METAL=off",),
}

_PREBUILT = (
    "To use the GPU without a toolkit, take one of llama-cpp-python's prebuilt wheels: its README"
    " names a wheel index for each version of CUDA.  After this set-up, run\n"
    "  .venv/bin/python -m pip install --force-reinstall --no-deps"
    " {requirement} --only-binary :all: --index-url <the index for your CUDA>"
)


@dataclass(frozen=True)
class BuildHost:
    """The machine that builds.  nvcc: path of the CUDA compiler.  gpus: names of NVIDIA GPUs."""

    system: str
    nvcc: str | None = None
    gpus: tuple[str, ...] = ()
    has_amd_gpu: bool = False


@dataclass(frozen=True)
class AcceleratorChoice:
    """The chosen accelerator.  reason: one clause.  hint: an alternative, or ""."""

    accelerator: str
    reason: str
    hint: str = ""


def choose(machine: BuildHost, requested: str, requirement: str) -> AcceleratorChoice:
    """Return the accelerator.

    requested: SPECD_ACCEL; "" chooses by the machine.  Raises ValueError.
    """
    if requested:
        if requested not in CMAKE_ARGS:
            allowed = ", ".join(CMAKE_ARGS)
            raise ValueError(f"SPECD_ACCEL={requested!r} must be one of {allowed}")
        return AcceleratorChoice(requested, "SPECD_ACCEL is set")
    if machine.system == "Darwin":
        return AcceleratorChoice("metal", "this is macOS")
    if machine.gpus and machine.nvcc:
        return AcceleratorChoice("cuda", f"found {machine.gpus[0]} and {machine.nvcc}")
    if machine.gpus:
        return AcceleratorChoice(
            "cpu",
            f"found {machine.gpus[0]}, but no CUDA toolkit (nvcc) to build for it",
            _PREBUILT.format(requirement=requirement),
        )
    if machine.nvcc:
        return AcceleratorChoice(
            "cpu",
            f"found {machine.nvcc}, but no NVIDIA GPU whose driver could load a CUDA build",
            "SPECD_ACCEL=cuda builds for CUDA anyway.",
        )
    if machine.has_amd_gpu:
        return AcceleratorChoice(
            "cpu",
            "found an AMD GPU, which is not used by default",
            "SPECD_ACCEL=rocm (needs ROCm) or SPECD_ACCEL=vulkan (needs its SDK) builds for it.",
        )
    return AcceleratorChoice("cpu", "found no GPU")


def inspect_machine() -> BuildHost:
    return BuildHost(
        system=platform.system(),
        nvcc=shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"),
        gpus=_nvidia_gpus(),
        has_amd_gpu=Path("/dev/kfd").exists(),
    )


def _nvidia_gpus() -> tuple[str, ...]:
    """Return name and compute capability of each GPU; empty if no driver answers."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def cpu_features(cpuinfo: str) -> str:
    """Return the instruction sets of the first processor in the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return " ".join(sorted(value.split()))
    return ""


def fingerprint(choice: AcceleratorChoice, machine: BuildHost, extra_cmake_args: str) -> str:
    """Return the build's name; machines with equal names can share it.

    llama.cpp compiles for this CPU (and GPU).  The bindings use ctypes, so the version of Python
    does not matter.
    """
    try:
        features = cpu_features(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        features = ""
    parts = [
        platform.system(),
        platform.machine(),
        "-".join(platform.libc_ver()),
        features or platform.processor(),
        extra_cmake_args,
        *(sorted(set(machine.gpus)) if choice.accelerator == "cuda" else ()),
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{choice.accelerator}-{digest[:16]}"
