"""Which Python runs the service: one that its sandbox sees and that fits the compiled packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.errors import InstallError
from specd.install.layout import HIDDEN, is_below

_ASK: Final = """
import json, sys, sysconfig
import ctypes, ssl, venv, zlib  # a trimmed Python lacks some
print(json.dumps({
    "executable": sys.executable, "prefix": sys.base_prefix,
    "stdlib": sysconfig.get_path("stdlib"), "abi": sysconfig.get_config_var("SOABI"),
    "version": "%d.%d" % sys.version_info[:2],
}))
"""
_PLACES: Final = ("/usr/bin", "/usr/local/bin")


@dataclass(frozen=True)
class Interpreter:
    """abi: what compiled modules are built for ("cpython-311-x86_64-linux-gnu")."""

    executable: str
    prefix: str
    stdlib: str
    abi: str
    version: str

    @property
    def is_visible(self) -> bool:
        """Whether a unit with ProtectHome= and PrivateTmp= sees all of it."""
        paths = (self.executable, str(Path(self.executable).resolve()), self.prefix, self.stdlib)
        return not any(is_below(path, HIDDEN) for path in paths)


@dataclass(frozen=True)
class PythonChoice:
    """is_copied: the interpreter itself goes into the environment too."""

    interpreter: Interpreter
    is_copied: bool = False

    @property
    def words(self) -> str:
        python = self.interpreter
        if self.is_copied:
            return f"a copy of Python {python.version} from {python.prefix}"
        return f"Python {python.version} at {python.executable}"


def current_interpreter() -> Interpreter:
    """What runs now, without its virtual environment."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = inspect(str(base)) or inspect(str(Path(sys.executable).resolve()))
    if found is None:
        raise InstallError(f"cannot run {base}, which this Python comes from")
    return found


def find_interpreters(version: str) -> list[Interpreter]:
    """The machine's own Pythons of that version."""
    found = (inspect(f"{place}/python{version}") for place in _PLACES)
    return [python for python in found if python is not None]


def inspect(executable: str) -> Interpreter | None:
    """None where it does not run, or lacks what is needed."""
    try:
        asked = subprocess.run(
            [executable, "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
        )
        return Interpreter(**json.loads(asked.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def choose_interpreter(
    now: Interpreter, others: Sequence[Interpreter], asked: str = ""
) -> PythonChoice:
    """asked: an executable that the user named.  Raises InstallError with what would help."""
    if asked:
        return PythonChoice(_asked(now, asked, inspect(asked)))
    for python in (now, *others):
        if python.is_visible and python.abi == now.abi:
            return PythonChoice(python)
    if Path(now.prefix, "lib", f"python{now.version}").is_dir() and now.prefix != "/usr":
        return PythonChoice(now, is_copied=True)
    raise InstallError(
        f"the service cannot see {now.executable}: its sandbox hides {_listed(HIDDEN)}."
        f"  Install Python {now.version} of the system (Debian, Ubuntu: apt install"
        f" python{now.version}), or name one: specd install --python /path/to/python{now.version}"
    )


def _asked(now: Interpreter, named: str, found: Interpreter | None) -> Interpreter:
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
            f"the service cannot see {named}: its sandbox hides {_listed(HIDDEN)}; name another"
        )
    return found


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(paths)
