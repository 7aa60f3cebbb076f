"""Test the build of kernels for other instruction sets, without compiling them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from scripts.install import SetUpError
from tools import cpu_instructions
from tools.cpu_instructions import LIBRARY


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SetUpError, match="'sse9' must be one of x86-64, avx2"):
        cpu_instructions.library_folder("sse9", {"XDG_CACHE_HOME": str(tmp_path)})


def test_every_build_sets_each_extension_on_or_off() -> None:
    plain, avx2 = (set(cpu_instructions.cmake_options(name)) for name in ("x86-64", "avx2"))
    assert "-DGGML_NATIVE=OFF" in plain & avx2
    assert plain - avx2 == {f"-DGGML_{name}=OFF" for name in cpu_instructions.EXTENSIONS}
    assert avx2 - plain == {f"-DGGML_{name}=ON" for name in cpu_instructions.EXTENSIONS}


def test_a_cached_library_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_library(name: str, requirement: str, scratch: Path, environment: object) -> Path:
        compiled.append(name)
        (scratch / "built").write_bytes(b"ELF")
        return scratch / "built"

    monkeypatch.setattr(cpu_instructions, "compile_library", compile_library)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = cpu_instructions.library_folder("avx2", environment)
    assert cpu_instructions.library_folder("avx2", environment) == folder
    assert compiled == ["avx2"]
    assert [path.name for path in folder.iterdir()] == [LIBRARY]


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SetUpError, match="x86-64 only"):
        cpu_instructions.library_folder("avx2", {})


def test_a_library_that_does_not_load_is_reported(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(b"no library")
    with pytest.raises(SetUpError, match="does not load"):
        cpu_instructions.system_info(tmp_path)
