"""Run all checks, in the order of the output."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version

import specd
from specd.doctor.check_in_sandbox import sandbox_findings
from specd.doctor.drafters import drafters
from specd.doctor.files import secrets, state, store
from specd.doctor.finding import Finding, ok, problem, warning
from specd.doctor.gpus import gpus
from specd.doctor.network import network
from specd.doctor.service import (
    HeldSocket,
    Show,
    is_installed,
    parse_held_socket,
    service,
    show,
)
from specd.errors import BadSetting, SpecdError
from specd.pairs import HISTORY_FILE, History, Pairs, Vocabularies, load_rules
from specd.placement.nvidia import Nvml
from specd.runner import probe
from specd.settings import Settings, find_ineffective, unknown_variables
from specd.store import Library

_BINDINGS = "llama-cpp-python"
_FIX_FIRST = "specd does not start before this is fixed"


def check_all(
    *,
    show: Show = show,
    check_in_sandbox: Callable[[HeldSocket | None], list[Finding]] = sandbox_findings,
    can_enter_sandbox: Callable[[], bool] = lambda: os.geteuid() == 0,
) -> Iterator[Finding]:
    """Yield the findings of all checks: inside the service if it is installed, else in this shell.

    check_in_sandbox: runs the checks in the service's sandbox.
    can_enter_sandbox: whether that is permitted.
    """
    unit, socket = show("specd.service"), show("specd.socket")
    held_socket = parse_held_socket(socket, unit)
    yield from service(unit, show("ollama.service"), socket)
    if not is_installed(unit):
        yield from check_local(held_socket)
    elif can_enter_sandbox():
        yield from check_in_sandbox(held_socket)
    else:
        words = "the rest is checked as this user, not as the service"
        yield ok("service", f"{words}: `sudo specd doctor` checks inside the service")
        yield from check_local(held_socket)


def find_held_socket() -> HeldSocket | None:
    """Return the socket that specd.socket holds, if systemd tells this user."""
    return parse_held_socket(show("specd.socket"), show("specd.service"))


def check_local(held_socket: HeldSocket | None = None) -> Iterator[Finding]:
    """Yield the findings of this process: its settings, its permissions, its devices.

    held_socket: of specd.socket; inside the sandbox systemd cannot be asked.
    """
    yield from _run_check("versions", _versions)
    with capture_warnings() as warnings:
        try:
            settings = Settings()
        except BadSetting as error:
            yield problem("settings", str(error), _FIX_FIRST)
            return
    for words in warnings:  # warnings on unreadable values of Ollama's variables
        yield warning("settings", words, "see docs/settings.md for valid values")
    yield from _run_check("settings", _variables)
    yield from _run_check("gpu", lambda: _gpus(settings))
    yield from _run_check("port", lambda: network(settings, held_socket))
    yield from _run_check("state", lambda: [state(settings), *secrets(settings)])
    yield from _run_check("store", lambda: _models(settings))


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    yield ok("versions", f"specd {specd.__version__}, Python {platform.python_version()}, {system}")
    try:
        found = version(_BINDINGS)
    except PackageNotFoundError:
        yield problem("llama.cpp", f"{_BINDINGS} is not installed", "install specd again")
        return
    pinned = _pinned_version()
    if pinned and found != pinned:  # its structs would not match
        words = f"{_BINDINGS} {found} is installed, but specd needs {pinned}"
        remedy = "install specd again: `make install`, or `specd install`"
        yield problem("llama.cpp", words, remedy)
    else:
        yield ok("llama.cpp", f"{_BINDINGS} {found}")


def _pinned_version() -> str:
    """Return the version that specd pins; "" if specd itself is not installed."""
    try:
        needs = requires(specd.DISTRIBUTION) or []
    except PackageNotFoundError:
        return ""
    pins = [need.partition("==")[2] for need in needs if need.startswith(f"{_BINDINGS}==")]
    return pins[0].split(";")[0].strip() if pins else ""


def _variables() -> Iterator[Finding]:
    """Yield a warning for each variable that is unknown or has no effect."""
    for variable, similar in unknown_variables().items():
        remedy = f"did you mean {similar}?" if similar else "docs/settings.md lists all"
        yield warning("settings", f"{variable} is set, but is not a setting", remedy)
    for variable, why in find_ineffective().items():
        yield warning("settings", f"{variable} is set, but has no effect: {why}", "unset it")


def _gpus(settings: Settings) -> list[Finding]:
    nvml = Nvml()
    with capture_warnings() as log_lines:
        offered = probe()
        found = gpus(offered, log_lines, nvml=nvml.gpus, driver=nvml.driver, igpu=settings.igpu)
        return list(found)


def _models(settings: Settings) -> list[Finding]:
    with capture_warnings():  # damage is reported by its own finding
        history = History(settings.state_dir / HISTORY_FILE if settings.state_dir else None)
        known = Vocabularies.in_state_dir(history)
        library = Library(
            settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
        )
        found = list(store(settings.models, library))
        try:
            rules = load_rules(settings.pairs_file)
        except BadSetting as error:
            return [*found, problem("pairs", str(error), _FIX_FIRST)]
        on = settings.speculative_decode
        finder = Pairs(library, rules, enabled=on, vocabularies=known)
        return [*found, drafters(library, finder, enabled=on)]


def _run_check(topic: str, find: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Run one check; an error in it becomes a finding, and the other checks still run."""
    try:
        yield from find()
    except (SpecdError, OSError) as error:
        yield problem(topic, f"this check failed: {error}", "see the error text")


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect specd's log warnings instead of printing them."""
    lines: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("specd")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
        logger.propagate = before
