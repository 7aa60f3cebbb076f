"""Check the installed versions against those that specd requires."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import specd
from specd.doctor.finding import Finding, ok, problem

_BINDINGS = "llama-cpp-python"


def versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    yield ok("versions", f"specd {specd.__version__}, Python {platform.python_version()}, {system}")
    yield _bindings()


def _bindings() -> Finding:
    """Return the finding on llama-cpp-python; with another version, its structs would not match."""
    wanted = _wanted()
    try:
        found = version(_BINDINGS)
    except PackageNotFoundError:
        return problem("llama.cpp", f"{_BINDINGS} is not installed", "install specd again")
    if wanted and found != wanted:
        words = f"{_BINDINGS} {found} is installed, but specd needs {wanted}"
        return problem(
            "llama.cpp", words, "install specd again: `make install`, or `specd install`"
        )
    return ok("llama.cpp", f"{_BINDINGS} {found}")


def _wanted() -> str:
    """Return the version that specd pins; "" if specd itself is not installed."""
    try:
        needs = requires(specd.DISTRIBUTION) or []
    except PackageNotFoundError:
        return ""
    pins = [need.partition("==")[2] for need in needs if need.startswith(f"{_BINDINGS}==")]
    return pins[0].split(";")[0].strip() if pins else ""
