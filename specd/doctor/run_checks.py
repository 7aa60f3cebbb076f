"""All examinations, in the order in which they are told."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from specd.doctor.check_in_sandbox import sandbox_findings
from specd.doctor.drafters import drafters
from specd.doctor.files import secrets, state, store
from specd.doctor.finding import Finding, ok, problem, warning
from specd.doctor.gpus import gpus
from specd.doctor.held_socket import HeldSocket, parse_held_socket
from specd.doctor.network import network
from specd.doctor.service import Show, is_installed, service, show
from specd.doctor.variables import environment
from specd.doctor.versions import versions
from specd.errors import BadSetting, SpecdError
from specd.pairs import HISTORY_FILE, History, Pairs, Vocabularies, load_rules
from specd.placement.nvidia import Nvml
from specd.runner import probe
from specd.settings import Settings
from specd.store import Library


def check_all(
    *,
    show: Show = show,
    check_in_sandbox: Callable[[HeldSocket | None], list[Finding]] = sandbox_findings,
    can_enter_sandbox: Callable[[], bool] = lambda: os.geteuid() == 0,
) -> Iterator[Finding]:
    """Of the whole machine: the service where it is installed, else what this shell would run.

    inside: examines in the service's sandbox; may_enter: whether that can be done.
    """
    unit, socket = show("specd.service"), show("specd.socket")
    held_socket = parse_held_socket(socket, unit)
    yield from service(unit, show("ollama.service"), socket)
    if not is_installed(unit):
        yield from check_local(held_socket)
    elif can_enter_sandbox():
        yield from check_in_sandbox(held_socket)
    else:
        words = "what follows is as this user sees it, not as the service does"
        yield ok("service", f"{words}: `sudo specd doctor` asks inside the service")
        yield from check_local(held_socket)


def find_held_socket() -> HeldSocket | None:
    """What specd.socket holds, as far as systemd tells this user."""
    return parse_held_socket(show("specd.socket"), show("specd.service"))


def check_local(held_socket: HeldSocket | None = None) -> Iterator[Finding]:
    """As the process that asks sees it: its settings, its rights, its devices.

    held: by specd.socket, which nobody in the service's sandbox may ask systemd for.
    """
    yield from _run_check("versions", versions)
    with capture_warnings() as said:
        try:
            settings = Settings()
        except BadSetting as error:
            yield problem("settings", str(error), "specd does not start before that is put right")
            return
    for words in said:  # of a value of Ollama's that cannot be read
        yield warning("settings", words, "docs/settings.md says what is allowed")
    yield from _run_check("settings", environment)
    yield from _run_check("gpu", lambda: _gpus(settings))
    yield from _run_check("port", lambda: network(settings, held_socket))
    yield from _run_check("state", lambda: [state(settings), *secrets(settings)])
    yield from _run_check("store", lambda: _models(settings))


def _gpus(settings: Settings) -> list[Finding]:
    nvml = Nvml()
    with capture_warnings() as said:
        offered = probe()
        found = gpus(offered, said, nvml=nvml.gpus, driver=nvml.driver, igpu=settings.igpu)
        return list(found)


def _models(settings: Settings) -> list[Finding]:
    with capture_warnings():  # whatever is damaged is a finding of its own
        history = History(settings.state_dir / HISTORY_FILE if settings.state_dir else None)
        known = Vocabularies.in_state_dir(history)
        library = Library(
            settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
        )
        found = list(store(settings.models, library))
        try:
            rules = load_rules(settings.pairs_file)
        except BadSetting as error:
            said = problem("pairs", str(error), "specd does not start before that is put right")
            return [*found, said]
        on = settings.speculative_decode
        finder = Pairs(library, rules, enabled=on, vocabularies=known)
        return [*found, drafters(library, finder, enabled=on)]


def _run_check(topic: str, find: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """A doctor who stumbles over one thing says so, and looks at the others."""
    try:
        yield from find()
    except (SpecdError, OSError) as error:
        yield problem(topic, f"this could not be looked at: {error}", "see the words before it")


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """What specd's rooms warn of meanwhile: kept, and not printed."""
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("specd")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)
        logger.propagate = before
