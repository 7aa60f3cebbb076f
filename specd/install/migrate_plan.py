"""Plan `specd migrate`: replace Ollama; uninstall_plan.py restores it.

The service runs as Ollama's own user, so that it reads and writes store and keys in place.
Ollama's unit stays enabled: a condition in a drop-in prevents its start, even by an update of
Ollama, while specd's drop-in exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from specd.errors import InstallError
from specd.ignored_variables import IGNORED_VARIABLES
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.health_check import check_health, format_model_count
from specd.install.host_system import UnitState
from specd.install.install_plan import (
    RELOAD,
    VenvContents,
    check,
    install_steps,
    installed_record,
    remarks,
    remarks_on_unknowns,
    write_record,
)
from specd.install.ollama_service import OllamaService
from specd.install.plan import StepPlan
from specd.install.record import MigrationState
from specd.install.steps import (
    Step,
    put_file,
    remove_file,
    run_program,
    save_unit_states,
    start_unit,
)
from specd.install.systemd_syntax import (
    bind_words,
    env_file_text,
    environment_line,
    path_words,
    setting_line,
)
from specd.port_owner import PortOwner
from specd.settings import HostAddress

_PAUSE: Final = f"""\
# Written by `specd migrate`, removed by `specd migrate --back`: specd serves Ollama's port.
[Unit]
ConditionPathExists=!{layout.DROP_IN}
"""


def ollama_address(facts: HostFacts, found: OllamaService) -> HostAddress:
    """Return Ollama's address, unless specd's own settings name another."""
    return address_in({**found.variables, **facts.own_settings})


def plan_migrate(
    facts: HostFacts,
    found: OllamaService,
    venv_contents: VenvContents | None,
    *,
    holder: PortOwner | None = None,
) -> StepPlan:
    """Return the plan.

    venv_contents: what to install first, None if specd is installed.
    holder: another process that holds the port.  Raises InstallError if something prevents it.
    """
    if venv_contents is not None or not facts.record.is_installed:
        check(facts, venv_contents)
    _check(facts, found, holder)
    before = facts.record.taken_over or MigrationState(
        ollama_active=facts.ollama.is_active if facts.ollama.exists else None,
        ollama_folder_made=f"{layout.UNITS}/{layout.OLLAMA}.d" not in facts.folders,
        specd_active=facts.service.is_active,
        specd_enabled=facts.service.is_enabled,
        specd_host=facts.environment.get("OLLAMA_HOST", ""),
    )
    is_new = not facts.record.is_installed or venv_contents is not None
    record = installed_record(facts) if is_new else facts.record
    steps = [
        save_unit_states(*_units_now(facts, before)),
        write_record(record.replace(taken_over=before)),
        *(install_steps(facts, venv_contents) if is_new else ()),
        *_files(facts, found),
        RELOAD,
    ]
    if facts.ollama.may_run:
        steps.append(run_program("stop Ollama", "systemctl", "stop", layout.OLLAMA))
    url = ollama_address(facts, found).url
    steps += [start_unit(layout.SERVICE), check_health(url, found.n_models)]
    outcome = (
        (
            f"specd answers on {url} instead of Ollama;"
            f" {format_model_count(found.n_models)} in {found.store}"
        ),
        "To restore Ollama at any time: specd migrate --back",
    )
    notes = (
        *remarks_on_unknowns(facts),
        *(remarks(facts) if is_new else ()),
        *_remarks(facts, found),
    )
    return StepPlan("Replacing Ollama", tuple(steps), notes, outcome)


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
    """Return the states to restore after a failure.

    After an interrupted migration no service runs, so the record decides.
    """
    ollama = facts.ollama
    if facts.record.taken_over and not facts.service.is_active and before.ollama_active:
        ollama = replace(ollama, is_active=True)
    return (ollama, facts.service)


def _files(facts: HostFacts, found: OllamaService) -> Iterator[Step]:
    if found.file_environment:
        text = env_file_text(found.file_environment)
        why = "the variables of Ollama's EnvironmentFile="
        yield put_file(layout.OLLAMA_ENV_FILE, text.encode(), 0o640, layout.USER, why)
    elif layout.OLLAMA_ENV_FILE in facts.contents:
        yield remove_file(layout.OLLAMA_ENV_FILE)
    yield put_file(layout.DROP_IN, drop_in_text(found).encode(), shows=True)
    if facts.ollama.exists:
        why = "prevents Ollama's start while specd replaces it"
        yield put_file(layout.PAUSE, _PAUSE.encode(), why=why, shows=True)


def drop_in_text(found: OllamaService) -> str:
    """Return the drop-in for specd.service: Ollama's user, its store and its settings.

    Raises InstallError if a path or a value cannot be part of a unit.
    """
    hidden = found.hidden
    opened = [path for path in found.folders if path not in hidden]
    lines = [
        "# Written by `specd migrate`, removed by `specd migrate --back`.",
        "# `systemctl edit specd` and /etc/specd/specd.env override this file.",
        "[Unit]",
        f"RequiresMountsFor={path_words(found.store)}",
        "",
        "[Service]",
        "# Ollama's user, so that it keeps owning the store and the keys.",
        setting_line("User", found.user),
        setting_line("Group", found.group),
        f"SupplementaryGroups={' '.join((layout.USER, *layout.GPU_GROUPS))}",
        setting_line("UMask", found.umask),
        *(f"ReadWritePaths={path_words(path)}" for path in opened),
    ]
    if hidden:
        lines += ["# The service sees only these folders of all homes.", "ProtectHome=tmpfs"]
        lines += [f"BindPaths={bind_words(path)}" for path in hidden]
    if found.file_environment:
        lines += ["EnvironmentFile=", f"EnvironmentFile=-{layout.OLLAMA_ENV_FILE}"]
        lines.append(f"EnvironmentFile=-{layout.ENV_FILE}")
    lines += [environment_line(name, value) for name, value in found.environment.items()]
    return "\n".join([*lines, ""])


def _remarks(facts: HostFacts, found: OllamaService) -> Iterator[str]:
    if facts.record.taken_over:
        yield "specd has replaced Ollama already; this updates it with Ollama's current settings"
    if facts.ollama.exists:
        yield (
            f"{layout.OLLAMA} stays enabled and its files are not changed: systemd skips it while"
            f" {layout.DROP_IN} exists"
        )
    for name, why in IGNORED_VARIABLES.items():
        if name in found.variables:
            yield f"{name} is copied but has no effect: {why}"
    for name, value in facts.own_settings.items():
        if name in found.variables and value != found.variables[name]:
            yield f"{name}: {layout.ENV_FILE} has another value, which has priority"
    if found.left_out:
        yield f"not copied, since only Ollama's program uses them: {', '.join(found.left_out)}"
