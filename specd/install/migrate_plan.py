"""The plan of `specd migrate`: in Ollama's place; going_back.py leads out of it again.

The service runs as Ollama's own user, so that store and keys are read and written where they are,
as they are.  Ollama's unit stays enabled: a condition in a drop-in keeps it from being started, by
an update of Ollama too, for as long as specd's drop-in is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from specd.errors import InstallError
from specd.ignored_variables import IGNORED_VARIABLES
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.health_check import CheckHealth, format_model_count
from specd.install.host_system import UnitState
from specd.install.install_plan import (
    RELOAD,
    check,
    install_steps,
    installed_record,
    remarks,
    unseen,
    write_record,
)
from specd.install.interpreter import PythonChoice
from specd.install.ollama_service import OllamaService
from specd.install.record import MigrationState
from specd.install.step_runner import StepPlan
from specd.install.steps import PutFile, RemoveFile, RunProgram, SaveUnitStates, StartUnit, Step
from specd.install.systemd_syntax import (
    bind_words,
    env_file_text,
    environment_line,
    path_words,
    setting_line,
)
from specd.install.venv_sources import Sources
from specd.port_owner import PortOwner
from specd.settings import HostAddress

_PAUSE: Final = f"""\
# Written by `specd migrate`, taken away by `specd migrate --back`: specd serves Ollama's port.
[Unit]
ConditionPathExists=!{layout.DROP_IN}
"""


def ollama_address(facts: HostFacts, found: OllamaService) -> HostAddress:
    """Ollama's, unless specd's own settings say another."""
    return address_in({**found.variables, **facts.own_settings})


def plan_migrate(
    facts: HostFacts,
    found: OllamaService,
    venv_contents: tuple[PythonChoice, Sources] | None,
    *,
    holder: PortOwner | None = None,
) -> StepPlan:
    """what: to install first, None where specd is installed.  holder: who else has the port.

    Raises InstallError with what hinders it.
    """
    if venv_contents is not None or not facts.record.is_installed:
        check(facts, venv_contents)
    _check(facts, found, holder)
    before = facts.record.taken_over or MigrationState(
        ollama_active=facts.ollama.is_active if facts.ollama.is_there else None,
        ollama_folder_made=f"{layout.UNITS}/{layout.OLLAMA}.d" not in facts.folders,
        specd_active=facts.service.is_active,
        specd_enabled=facts.service.is_enabled,
        specd_host=facts.environment.get("OLLAMA_HOST", ""),
    )
    is_new = not facts.record.is_installed or venv_contents is not None
    record = installed_record(facts) if is_new else facts.record
    steps: list[Step] = [
        SaveUnitStates(_units_now(facts, before)),
        write_record(record.replace(taken_over=before)),
        *(install_steps(facts, venv_contents) if is_new else ()),
        *_files(facts, found),
        RELOAD,
    ]
    if facts.ollama.may_run:
        steps.append(RunProgram("stop Ollama", ("systemctl", "stop", layout.OLLAMA)))
    url = ollama_address(facts, found).url
    steps += [StartUnit(layout.SERVICE), CheckHealth(url, found.n_models)]
    outcome = (
        (
            f"specd answers on {url} in Ollama's place;"
            f" {format_model_count(found.n_models)} in {found.store}"
        ),
        "Back to Ollama, at any time: specd migrate --back",
    )
    said = (*unseen(facts), *(remarks(facts) if is_new else ()), *_remarks(facts, found))
    return StepPlan("Taking over from Ollama", tuple(steps), said, outcome)


def _check(facts: HostFacts, found: OllamaService, holder: PortOwner | None) -> None:
    if holder is not None:
        raise InstallError(
            f"Ollama's address {ollama_address(facts, found).url} is taken by {holder};"
            " stop it, and try again"
        )
    if facts.socket.is_active or facts.socket.is_enabled:
        raise InstallError(
            "specd.socket holds an address of its own; first: systemctl disable --now specd.socket"
        )


def _units_now(facts: HostFacts, before: MigrationState) -> tuple[UnitState, ...]:
    """What a failure brings back.  A migration that was cut short left nobody running."""
    ollama = facts.ollama
    if facts.record.taken_over and not facts.service.is_active and before.ollama_active:
        ollama = replace(ollama, is_active=True)
    return (ollama, facts.service)


def _files(facts: HostFacts, found: OllamaService) -> Iterator[Step]:
    if found.file_environment:
        text = env_file_text(found.file_environment)
        why = "what Ollama's EnvironmentFile= says"
        yield PutFile(layout.OLLAMA_ENV_FILE, text.encode(), 0o640, layout.USER, why)
    elif layout.OLLAMA_ENV_FILE in facts.contents:
        yield RemoveFile(layout.OLLAMA_ENV_FILE)
    yield PutFile(layout.DROP_IN, drop_in_text(found).encode(), shows=True)
    if facts.ollama.is_there:
        why = "Ollama is not started while specd is in its place"
        yield PutFile(layout.PAUSE, _PAUSE.encode(), why=why, shows=True)


def drop_in_text(found: OllamaService) -> str:
    """For specd.service: Ollama's user, its store opened in the sandbox, its settings.

    Raises InstallError where a path or a value cannot stand in a unit.
    """
    hidden = found.hidden
    opened = [path for path in found.folders if path not in hidden]
    lines = [
        "# Written by `specd migrate`, taken away by `specd migrate --back`.",
        "# `systemctl edit specd` and /etc/specd/specd.env are stronger than what stands here.",
        "[Unit]",
        f"RequiresMountsFor={path_words(found.store)}",
        "",
        "[Service]",
        "# The store and the keys stay its own.",
        setting_line("User", found.user),
        setting_line("Group", found.group),
        f"SupplementaryGroups={' '.join((layout.USER, *layout.GPU_GROUPS))}",
        setting_line("UMask", found.umask),
        *(f"ReadWritePaths={path_words(path)}" for path in opened),
    ]
    if hidden:
        lines += ["# Of all homes, these folders alone.", "ProtectHome=tmpfs"]
        lines += [f"BindPaths={bind_words(path)}" for path in hidden]
    if found.file_environment:
        lines += ["EnvironmentFile=", f"EnvironmentFile=-{layout.OLLAMA_ENV_FILE}"]
        lines.append(f"EnvironmentFile=-{layout.ENV_FILE}")
    lines += [environment_line(name, value) for name, value in found.environment.items()]
    return "\n".join([*lines, ""])


def _remarks(facts: HostFacts, found: OllamaService) -> Iterator[str]:
    if facts.record.taken_over:
        yield "specd is in Ollama's place; this does it again, with Ollama's settings of now"
    if facts.ollama.is_there:
        yield (
            f"{layout.OLLAMA} stays enabled, and its files as they are: systemd skips it while"
            f" {layout.DROP_IN} is there"
        )
    for name, why in IGNORED_VARIABLES.items():
        if name in found.variables:
            yield f"{name} is carried over, and has no effect: {why}"
    for name, value in facts.own_settings.items():
        if name in found.variables and value != found.variables[name]:
            yield f"{name}: {layout.ENV_FILE} has another value, which stays in force"
    if found.left_out:
        yield f"not carried over, for Ollama's program alone: {', '.join(found.left_out)}"
