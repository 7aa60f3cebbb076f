"""Choose the service's Python: visible in its sandbox, and compatible with the packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specd.errors import InstallError
from specd.install.layout import HIDDEN, is_below

_ASK: Final = """
import json, sys, sysconfig
import ctypes, ssl, venv, zlib  # a minimal Python lacks some
print(json.dumps({
    "executable": sys.executable, "prefix": sys.base_prefix,
    "stdlib": sysconfig.get_path("stdlib"), "abi": sysconfig.get_config_var("SOABI"),
    "version": "%d.%d" % sys.version_info[:2],
}))
"""
_PLACES: Final = ("/usr/bin", "/usr/local/bin")


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter.

    abi: the ABI of compiled modules ("cpython-311-x86_64-linux-gnu").
    is_copied: the service's environment gets a copy of it.
    """

    executable: str
    prefix: str
    stdlib: str
    abi: str
    version: str
    is_copied: bool = False

    @property
    def is_visible(self) -> bool:
        """Return whether a unit with ProtectHome= and PrivateTmp= can read all of it."""
        paths = (self.executable, str(Path(self.executable).resolve()), self.prefix, self.stdlib)
        return not any(is_below(path, HIDDEN) for path in paths)

    @property
    def words(self) -> str:
        if self.is_copied:
            return f"a copy of Python {self.version} from {self.prefix}"
        return f"Python {self.version} at {self.executable}"


def current_interpreter() -> Interpreter:
    """Return the running interpreter, without its virtual environment."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = inspect(str(base)) or inspect(str(Path(sys.executable).resolve()))
    if found is None:
        raise InstallError(f"cannot run {base}, which this Python comes from")
    return found


def find_interpreters(version: str) -> list[Interpreter]:
    """Return the system's own interpreters of that version."""
    found = (inspect(f"{place}/python{version}") for place in _PLACES)
    return [python for python in found if python is not None]


def inspect(executable: str) -> Interpreter | None:
    """Return the interpreter; None if it does not run, or lacks a module."""
    try:
        asked = subprocess.run(
            [executable, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
        )
        return Interpreter(**json.loads(asked.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def choose_interpreter(
    now: Interpreter, others: Sequence[Interpreter], named: str = ""
) -> Interpreter:
    """Return the Python for the service.

    named: an executable that the user chose.  Raises InstallError with a hint.
    """
    if named:
        return _checked(now, named, inspect(named))
    for python in (now, *others):
        if python.is_visible and python.abi == now.abi:
            return python
    if Path(now.prefix, "lib", f"python{now.version}").is_dir() and now.prefix != "/usr":
        return replace(now, is_copied=True)
    raise InstallError(
        f"the service cannot see {now.executable}: its sandbox hides {', '.join(HIDDEN)}."
        f"  Install the system's Python {now.version} (Debian, Ubuntu: apt install"
        f" python{now.version}), or name one: specd install --python /path/to/python{now.version}"
    )


def _checked(now: Interpreter, named: str, found: Interpreter | None) -> Interpreter:
    if found is None:
        raise InstallError(
            f"{named} does not run, or lacks ssl, ctypes, zlib or venv; name another Python"
        )
    if found.abi != now.abi:
        raise InstallError(
            f"{named} is Python {found.version} ({found.abi}), and specd's packages are built for"
            f" {now.version} ({now.abi}); set specd up anew with it (make clean;"
            f" make PYTHON={named} install), or name another Python"
        )
    if not found.is_visible:
        raise InstallError(
            f"the service cannot see {named}: its sandbox hides {', '.join(HIDDEN)}; name another"
        )
    return found
