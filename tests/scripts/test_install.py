"""Test the installer: when it runs, where wheels are, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import install
from scripts.accelerator import AcceleratorChoice, BuildHost, fingerprint
from scripts.install import SetUpError, Stamp

ROOT = Path(__file__).parents[2]
PIN = "llama-cpp-python==1.2.3"
WHEEL = "llama_cpp_python-1.2.3-py3-none-linux_x86_64.whl"


def test_the_pinned_version_is_read_from_pyproject() -> None:
    assert install.llama_requirement(ROOT / "pyproject.toml") == "llama-cpp-python==0.3.36"


@pytest.mark.parametrize(
    "configuration,asked,root,had,wanted,serves",
    [
        ("abc", "", "/here", False, False, True),
        ("abc", "cuda", "/here", False, False, True),
        ("abc", "cpu", "/here", False, False, False),
        ("other", "", "/here", False, False, False),
        ("abc", "", "/moved", False, False, False),
        ("abc", "", "/here", True, False, True),
        ("abc", "", "/here", True, True, True),
        ("abc", "", "/here", False, True, False),
    ],
)
def test_a_second_install_runs_only_after_a_change(
    tmp_path: Path,
    configuration: str,
    asked: str,
    root: str,
    had: bool,
    wanted: bool,
    serves: bool,
) -> None:
    Stamp("abc", "cuda", "/here", had).write(tmp_path / "stamp")
    stamp = Stamp.read(tmp_path / "stamp")
    assert stamp is not None
    assert stamp.serves(configuration, asked, Path(root), dev=wanted) is serves


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"configuration": "x", "more": 1}'])
def test_a_damaged_stamp_counts_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "stamp").write_text(text)
    assert Stamp.read(tmp_path / "stamp") is None


def test_wheels_are_in_the_users_cache() -> None:
    assert install.cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/specd/wheels")
    assert install.cache_folder({}).parts[-3:] == (".cache", "specd", "wheels")


def test_a_cached_wheel_is_used(tmp_path: Path) -> None:
    choice, machine = AcceleratorChoice("cpu", ""), BuildHost("Linux")
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = install.cache_folder(environment) / fingerprint(choice, machine, "")
    folder.mkdir(parents=True)
    (folder / WHEEL).touch()
    assert install.find_or_build(PIN, choice, machine, environment) == folder / WHEEL


def test_a_cached_wheel_of_another_version_is_not_used(tmp_path: Path) -> None:
    (tmp_path / WHEEL).touch()
    assert install.find_wheel(tmp_path, "llama-cpp-python==1.2.4") is None


def test_a_missing_compiler_is_reported_with_the_package_to_install() -> None:
    with pytest.raises(SetUpError, match="apt install build-essential"):
        install.require_compiler({"CXX": "no-such-compiler"})


def test_cmake_gets_the_accelerator_and_the_users_options() -> None:
    machine = BuildHost("Linux", nvcc="/opt/cuda/bin/nvcc")
    environment = install.build_environment(
        AcceleratorChoice("cuda", ""), machine, {"CMAKE_ARGS": "-DX=1", "HOME": "/h"}
    )
    assert environment == {
        "CMAKE_ARGS": "-DGGML_CUDA=on -DX=1",
        "CUDACXX": "/opt/cuda/bin/nvcc",
        "HOME": "/h",
    }
