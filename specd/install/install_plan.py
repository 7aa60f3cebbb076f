"""The plan of `specd install`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.health_check import CheckHealth
from specd.install.interpreter import PythonChoice
from specd.install.record import Record, fingerprint
from specd.install.step_runner import StepPlan
from specd.install.steps import (
    BackUpFile,
    PutFile,
    PutLink,
    RunProgram,
    SaveUnitStates,
    StartUnit,
    Step,
)
from specd.install.venv_sources import Sources
from specd.install.venv_steps import BuildVenv, RestoreFormerVenv, SwapVenv
from specd.port_owner import PortOwner, addresses_overlap

#: Beside the copy itself: compiled code, the journal of the file system, a model's manifest.
_DISK_MARGIN: Final = 1.3
#: It starts each engine from ENVIRONMENT, whatever is there.
_STILL_RUNS: Final = (
    f"{layout.SERVICE} runs, and is not restarted: its engines will be of another version than"
    " itself, and answers may fail, until `systemctl restart specd`"
)
RELOAD: Final = RunProgram("let systemd read its units again", ("systemctl", "daemon-reload"))


def plan_install(
    facts: HostFacts,
    venv_contents: tuple[PythonChoice, Sources] | None,
    *,
    starts: bool = True,
    holder: PortOwner | None = None,
) -> StepPlan:
    """what: to make the environment of; None where this program is the installed one.

    holder: who has the port.  Raises InstallError with what hinders it.
    """
    check(facts, venv_contents)
    if starts and holder is not None:
        raise InstallError(_port_remark(facts, holder))
    units = SaveUnitStates((facts.service, facts.socket))
    steps: list[Step] = [
        units,
        write_record(installed_record(facts)),
        *install_steps(facts, venv_contents),
    ]
    outcome = [f"specd {facts.version} is installed: settings in {layout.ENV_FILE}"]
    if starts:
        steps += [
            StartUnit(layout.SERVICE, enable=_should_enable(facts)),
            CheckHealth(facts.address.url),
        ]
        outcome.append(f"It listens on {facts.address.url}; log: journalctl -u specd")
    elif facts.service.is_active:
        until = "" if venv_contents is None else ", and answers may fail until then"
        outcome.append(f"specd still runs as it was before{until}: systemctl restart specd")
    else:
        outcome.append("Start it, now and at every boot: systemctl enable --now specd")
    said = (*unseen(facts), *remarks(facts), *(_ollama_remark(facts) if starts else ()))
    if facts.service.is_active and venv_contents is not None and not starts:
        said += (_STILL_RUNS,)
    done = (
        f"Updating specd {facts.record.version} to" if facts.record.version else "Installing specd"
    )
    return StepPlan(f"{done} {facts.version}", tuple(steps), said, tuple(outcome))


def check(facts: HostFacts, venv_contents: tuple[PythonChoice, Sources] | None) -> None:
    """Raises InstallError where nothing should be begun."""
    for place in facts.read_only:
        if place != layout.COMMAND:
            raise InstallError(
                f"{place} lies on a file system that is read-only; make it writable"
                " (mount -o remount,rw ...) and try again"
            )
    if venv_contents is None:
        return
    if layout.ENVIRONMENT in facts.folders and not facts.record.has_environment:
        raise InstallError(
            f"{layout.ENVIRONMENT} is there, and `specd install` did not make it; move it away"
        )
    needed = int(venv_contents[1].n_bytes * _DISK_MARGIN)
    if facts.free_bytes < needed:
        raise InstallError(
            f"{layout.ENVIRONMENT} needs {needed / 1e6:.0f} MB, and"
            f" {facts.free_bytes / 1e6:.0f} MB are free there"
        )


def install_steps(
    facts: HostFacts, venv_contents: tuple[PythonChoice, Sources] | None
) -> Iterator[Step]:
    """All of an installation but its start."""
    if layout.FORMER in facts.folders and layout.ENVIRONMENT not in facts.folders:
        yield RestoreFormerVenv()
    if venv_contents is not None:
        yield BuildVenv(*venv_contents)
        yield SwapVenv()
        if facts.has_selinux:
            yield RunProgram("label it", ("restorecon", "-R", layout.ENVIRONMENT))
    for path, content in facts.shipped.files.items():
        yield from _back_up(facts, path, content)
        yield PutFile(path, content)
    yield RunProgram("make the user and the groups", ("systemd-sysusers", layout.SYSUSERS))
    if layout.ENV_FILE not in facts.contents:
        # The daemon reads it again on SIGHUP; others must not: keys may stand in it.
        why = "every setting, commented out"
        yield PutFile(layout.ENV_FILE, facts.shipped.env_file, 0o640, layout.USER, why)
    yield RunProgram("", ("systemd-tmpfiles", "--create", layout.TMPFILES))
    if _may_link(facts):
        yield PutLink(layout.COMMAND, f"{layout.ENVIRONMENT}/bin/specd")
    yield RELOAD


def _back_up(facts: HostFacts, path: str, content: bytes) -> Iterator[Step]:
    """Whatever a person wrote there is not lost."""
    before = facts.contents.get(path)
    if before is None or before == content:
        return
    if fingerprint(before) != facts.record.files.get(path):
        yield BackUpFile(path, backup_name(path))


def backup_name(path: str) -> str:
    """No unit by its ending, so that systemd leaves it alone."""
    return f"{path}.kept-by-specd"


def _may_link(facts: HostFacts) -> bool:
    is_ours = facts.command == f"{layout.ENVIRONMENT}/bin/specd"
    return layout.COMMAND not in facts.read_only and (facts.command is None or is_ours)


def installed_record(facts: HostFacts) -> Record:
    """The record once all of it is in place; what an earlier one wrote stays in it."""
    files = {path: fingerprint(content) for path, content in facts.shipped.files.items()}
    return facts.record.replace(
        version=facts.version,
        files={**facts.record.files, **files},
        has_environment=True,
        has_command=_may_link(facts),
        made_user=facts.record.made_user or not facts.has_user,
    )


def write_record(record: Record) -> PutFile:
    """Before all else, so that a run that is cut short is known to the next."""
    return PutFile(layout.RECORD, record.bytes(), why="what is done here")


def unseen(facts: HostFacts) -> Iterator[str]:
    """What could not be found out."""
    if facts.unread:
        yield f"where {layout.OLLAMA} listens is not known, since {facts.unread}"
    if facts.unseen:
        yield f"which units run, and start at boot, is not known, since {facts.unseen}"


def remarks(facts: HostFacts) -> Iterator[str]:
    if layout.ENV_FILE in facts.contents:
        yield f"{layout.ENV_FILE} is there, and stays as it is"
    if layout.COMMAND in facts.read_only:
        yield f"{layout.COMMAND} cannot be written: the command is {layout.ENVIRONMENT}/bin/specd"
    elif not _may_link(facts):
        yield f"{layout.COMMAND} is somebody else's, and stays"


def _should_enable(facts: HostFacts) -> bool:
    """Not where the user chose that the socket starts it."""
    return facts.service.is_enabled or not facts.socket.is_enabled


def _ollama_remark(facts: HostFacts) -> Iterator[str]:
    is_held = facts.record.taken_over is not None
    theirs = address_in(facts.ollama_environment)
    if facts.ollama.is_enabled and not is_held and addresses_overlap(theirs, facts.address):
        yield (
            f"{layout.OLLAMA} starts at boot too, on {theirs.url}, and one of the two will not"
            " have it: `specd migrate` takes over, or `systemctl disable ollama`"
        )


def _port_remark(facts: HostFacts, holder: PortOwner) -> str:
    said = f"{facts.address.url} is taken by {holder}"
    if holder.unit == layout.OLLAMA or (not holder.unit and "ollama" in holder.name):
        return f"{said}: `specd migrate` takes over from it, or say --no-start"
    return (
        f"{said}: stop it, or give specd another address (OLLAMA_HOST in {layout.ENV_FILE}),"
        " or say --no-start"
    )
