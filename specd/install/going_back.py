"""The plan of `specd migrate --back`: out of Ollama's place again.

Two services that start at boot for the same port are one too many: Ollama has it, specd rests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import Facts, address_in
from specd.install.installing import unseen, write_record
from specd.install.machine import UnitState
from specd.install.plan import Plan
from specd.install.record import TakenOver
from specd.install.steps import BringTo, KeepUnits, RemoveFile, Run, Step
from specd.port_holder import meet
from specd.settings import HostAddress


def plan_back(facts: Facts) -> Plan:
    """Raises InstallError where nothing was taken over."""
    before = facts.record.taken_over
    if before is None:
        raise InstallError("specd is not in Ollama's place: there is nothing to go back from")
    steps: list[Step] = [KeepUnits((facts.ollama, facts.socket, facts.service))]
    if running := [unit.name for unit in (facts.socket, facts.service) if unit.may_run]:
        steps.append(Run("stop specd", ("systemctl", "stop", *running)))
    steps += [
        *back_files(facts, before),
        BringTo(_units(facts, before)),
        write_record(facts.record.replace(taken_over=None)),
    ]
    outcome = "Ollama is as it was before"
    if before.ollama_active is None:
        outcome = "specd has its own user and store again"
    elif not facts.ollama.is_there:
        outcome = f"{layout.OLLAMA} is gone meanwhile; its store is where it was"
    said = (*unseen(facts), *_remarks(facts, before))
    return Plan("Going back to Ollama", tuple(steps), said, (outcome,))


def back_files(facts: Facts, before: TakenOver) -> Iterator[Step]:
    for path in (layout.DROP_IN, layout.OLLAMA_ENV_FILE):
        if path in facts.contents:
            yield RemoveFile(path, with_folder=path == layout.DROP_IN)
    if layout.PAUSE in facts.contents:
        yield RemoveFile(layout.PAUSE, with_folder=before.ollama_folder_made)


def former_ollama(facts: Facts, before: TakenOver) -> UnitState:
    """It keeps whatever it was enabled for."""
    return replace(facts.ollama, is_active=bool(before.ollama_active))


def _units(facts: Facts, before: TakenOver) -> tuple[UnitState, ...]:
    """The socket rested when specd took over, which is a condition of that."""
    socket = replace(facts.socket, is_active=False, is_enabled=False)
    specd = replace(facts.service, is_active=before.specd_active, is_enabled=before.specd_enabled)
    ollama = former_ollama(facts, before)
    if _gives_way(facts, before):
        # Whoever served the port before, somebody does afterwards.
        ollama = replace(ollama, is_active=ollama.is_active or specd.is_active)
        specd = replace(specd, is_active=False, is_enabled=False)
    return (socket, specd, ollama)


def _gives_way(facts: Facts, before: TakenOver) -> bool:
    """Whether Ollama will have the port that would be specd's own again."""
    comes_back = facts.ollama.is_there and (before.ollama_active or facts.ollama.is_enabled)
    return bool(comes_back) and meet(
        _own_address(facts, before), address_in(facts.ollama_environment)
    )


def _own_address(facts: Facts, before: TakenOver) -> HostAddress:
    return address_in({"OLLAMA_HOST": before.specd_host, **facts.own_settings})


def _remarks(facts: Facts, before: TakenOver) -> Iterator[str]:
    if not _gives_way(facts, before) or not (before.specd_active or before.specd_enabled):
        return
    url = _own_address(facts, before).url
    both = before.specd_enabled and facts.ollama.is_enabled
    at_boot = f", where both were to start at boot before: of the two {layout.OLLAMA} does"
    yield (
        f"{url} is Ollama's again{at_boot if both else ''}; {layout.SERVICE} stays installed, is"
        " stopped, and does not start at boot"
    )
