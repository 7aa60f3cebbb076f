"""The service's environment: the choice of Python, and the copied packages."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd.errors import InstallError
from specd.install import (
    choose_interpreter,
    collect_packages,
    current_interpreter,
    find_interpreters,
)
from specd.install.host_system import HostSystem
from specd.install.interpreter import Interpreter, inspect
from specd.install.layout import STAGED
from specd.install.steps import Undo
from specd.install.venv import build_venv, copy_file
from specd.install.venv_sources import Sources
from tests.install.fake_host_system import PYTHON, FakeHostSystem, write_small_sources

IN_HOME = Interpreter(
    "/home/Me/.pyenv/bin/python3.11",
    "/home/Me/.pyenv",
    "/home/Me/.pyenv/lib/python3.11",
    "cpython-311",
    "3.11",
)


def test_a_visible_python_is_chosen() -> None:
    assert choose_interpreter(PYTHON, [IN_HOME]) == PYTHON


def test_the_systems_python_replaces_one_in_a_home() -> None:
    assert choose_interpreter(IN_HOME, [PYTHON]) == PYTHON


def test_a_python_with_another_abi_is_refused() -> None:
    free_threaded = replace(PYTHON, abi="cpython-311t")
    with pytest.raises(InstallError, match=r"apt install python3\.11.*--python"):
        choose_interpreter(IN_HOME, [free_threaded])


def test_a_python_in_a_home_is_copied_if_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11").mkdir(parents=True)
    hidden = replace(IN_HOME, prefix=str(tmp_path))
    assert choose_interpreter(hidden, []) == replace(hidden, is_copied=True)


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"abi": "cpython-312"}, "packages are built for 3.11"),
        ({"prefix": "/home/Me"}, "cannot see /named"),
    ],
)
def test_a_python_named_by_the_user_must_fit(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    named = replace(PYTHON, **changes)
    monkeypatch.setattr("specd.install.interpreter.inspect", lambda _: named)
    with pytest.raises(InstallError, match=said):
        choose_interpreter(PYTHON, [], "/named")


def test_a_program_that_is_not_python_is_an_error() -> None:
    with pytest.raises(InstallError, match="/bin/false does not run"):
        choose_interpreter(PYTHON, [], "/bin/false")


def test_the_current_interpreter_is_the_base_of_the_venv() -> None:
    now = current_interpreter()
    assert now.prefix == sys.base_prefix
    assert now.version == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert inspect("/no/such/python") is None
    assert all(python.version == now.version for python in find_interpreters(now.version))


def test_only_specd_and_its_requirements_are_copied() -> None:
    sources = collect_packages()
    targets = set(map(str, sources.files))
    assert {"specd/__init__.py", "specd/configs/pairs.toml", "specd/demo/target.gguf"} <= targets
    assert "specd/systemd/specd.service" in targets
    assert {"aiohttp/__init__.py", "llama_cpp/__init__.py", "pydantic/__init__.py"} <= targets
    assert "pytest" not in sources.names
    assert not [name for name in targets if name.startswith(("pytest/", "mypy/", "hypothesis/"))]
    assert not [name for name in targets if name.endswith(".pth") or ".." in Path(name).parts]
    assert not [name for name in targets if name.startswith("specd/") and "__pycache__" in name]
    assert sources.n_bytes > 50e6
    assert len(targets) == len(sources.files)


def test_a_copy_keeps_content_time_and_executable_bit(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b" / "c"
    source.write_bytes(b"x" * 5000)
    source.chmod(0o4744)
    os.utime(source, (1, 2))
    copy_file(source, target)
    seen = target.stat()
    assert target.read_bytes() == source.read_bytes()
    assert (seen.st_mode & 0o7777, seen.st_mtime) == (0o755, 2)
    assert seen.st_ino != source.stat().st_ino


def test_a_full_disk_is_an_error_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fcntl.ioctl", full)
    source = tmp_path / "a"
    source.write_text("x")
    with pytest.raises(OSError, match="No space left"):
        copy_file(source, tmp_path / "b")


def test_an_environment_that_loads_hidden_files_is_refused(
    machine: FakeHostSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*command: str) -> str:
        if command[1:3] == ("-I", "-c"):
            return '["/usr/lib/a.so", "/home/Me/lib/b.so"]'
        return FakeHostSystem.run(machine, *command)

    undo, build = Undo(), build_venv(*write_small_sources(tmp_path))
    monkeypatch.setattr(machine, "run", run)
    with pytest.raises(InstallError, match=r"needs /home/Me/lib/b\.so"):
        build.do(machine, undo)
    assert undo.revert() == []
    assert not machine.at(STAGED).exists()


def test_an_environment_without_specd_is_refused(machine: FakeHostSystem, tmp_path: Path) -> None:
    """The check runs a real Python, and the environment lacks specd."""
    python = inspect("/usr/bin/python3") or current_interpreter()
    module = tmp_path / "a.py"
    module.write_text("")
    real = HostSystem(machine.root)
    sources = Sources({Path("a.py"): module}, ("specd",))
    with pytest.raises(InstallError, match="No module named 'specd'"):
        build_venv(python, sources).do(real, Undo())


@pytest.mark.system
def test_a_python_is_copied_with_its_library(machine: FakeHostSystem, tmp_path: Path) -> None:
    now = current_interpreter()
    if now.prefix == "/usr":
        pytest.skip("this Python is the system's own")
    module = tmp_path / "a.py"
    module.write_text("x = 1\n")
    real = HostSystem(machine.root)
    sources = Sources({Path("a.py"): module}, ("specd",))
    with pytest.raises(InstallError, match="No module named 'specd'"):
        build_venv(replace(now, is_copied=True), sources).do(real, Undo())
    python = machine.at(STAGED) / "bin" / "python3"
    asked = "import a, json, os, ssl, sys; print(os.__file__, a.__file__, sys.prefix)"
    done = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, check=True)
    assert [Path(p).is_relative_to(machine.at(STAGED)) for p in done.stdout.split()] == [True] * 3
    loaded = "print(open('/proc/self/maps').read())"
    done = subprocess.run([python, "-I", "-c", loaded], capture_output=True, text=True, check=True)
    assert f" {now.prefix}/" not in done.stdout
