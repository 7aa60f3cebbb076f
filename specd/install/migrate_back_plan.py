"""Plan `specd migrate --back`: restore Ollama.

If both services started at boot for the same port before, Ollama gets it and specd stays stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.host_system import UnitState
from specd.install.install_plan import unseen, write_record
from specd.install.record import MigrationState
from specd.install.step_runner import StepPlan
from specd.install.steps import RemoveFile, RunProgram, SaveUnitStates, SetUnitStates, Step
from specd.port_owner import addresses_overlap
from specd.settings import HostAddress


def plan_migrate_back(facts: HostFacts) -> StepPlan:
    """Return the plan.  Raises InstallError if specd has not replaced Ollama."""
    before = facts.record.taken_over
    if before is None:
        raise InstallError("specd has not replaced Ollama: there is nothing to restore")
    steps: list[Step] = [SaveUnitStates((facts.ollama, facts.socket, facts.service))]
    if running := [unit.name for unit in (facts.socket, facts.service) if unit.may_run]:
        steps.append(RunProgram("stop specd", ("systemctl", "stop", *running)))
    steps += [
        *migrate_back_files(facts, before),
        SetUnitStates(_units(facts, before)),
        write_record(facts.record.replace(taken_over=None)),
    ]
    outcome = "Ollama is restored"
    if before.ollama_active is None:
        outcome = "specd has its own user and store again"
    elif not facts.ollama.is_there:
        outcome = f"{layout.OLLAMA} was removed in the meantime; its store is unchanged"
    said = (*unseen(facts), *_remarks(facts, before))
    return StepPlan("Restoring Ollama", tuple(steps), said, (outcome,))


def migrate_back_files(facts: HostFacts, before: MigrationState) -> Iterator[Step]:
    for path in (layout.DROP_IN, layout.OLLAMA_ENV_FILE):
        if path in facts.contents:
            yield RemoveFile(path, with_folder=path == layout.DROP_IN)
    if layout.PAUSE in facts.contents:
        yield RemoveFile(layout.PAUSE, with_folder=before.ollama_folder_made)


def former_ollama_state(facts: HostFacts, before: MigrationState) -> UnitState:
    """Return Ollama's former state; it keeps its current enablement."""
    return replace(facts.ollama, is_active=bool(before.ollama_active))


def _units(facts: HostFacts, before: MigrationState) -> tuple[UnitState, ...]:
    """Return the states of all units; specd.socket was inactive, a condition of the migration."""
    socket = replace(facts.socket, is_active=False, is_enabled=False)
    specd = replace(facts.service, is_active=before.specd_active, is_enabled=before.specd_enabled)
    ollama = former_ollama_state(facts, before)
    if _yields_port_to_ollama(facts, before):
        # One of the two served the port before, so one must afterwards.
        ollama = replace(ollama, is_active=ollama.is_active or specd.is_active)
        specd = replace(specd, is_active=False, is_enabled=False)
    return (socket, specd, ollama)


def _yields_port_to_ollama(facts: HostFacts, before: MigrationState) -> bool:
    """Return whether Ollama gets the port that specd's own settings name too."""
    comes_back = facts.ollama.is_there and (before.ollama_active or facts.ollama.is_enabled)
    return bool(comes_back) and addresses_overlap(
        _own_address(facts, before), address_in(facts.ollama_environment)
    )


def _own_address(facts: HostFacts, before: MigrationState) -> HostAddress:
    return address_in({"OLLAMA_HOST": before.specd_host, **facts.own_settings})


def _remarks(facts: HostFacts, before: MigrationState) -> Iterator[str]:
    if not _yields_port_to_ollama(facts, before) or not (
        before.specd_active or before.specd_enabled
    ):
        return
    url = _own_address(facts, before).url
    both = before.specd_enabled and facts.ollama.is_enabled
    at_boot = f" (both started at boot before; now only {layout.OLLAMA} does)"
    yield (
        f"{url} is Ollama's again{at_boot if both else ''}; {layout.SERVICE} stays installed, is"
        " stopped, and does not start at boot"
    )
