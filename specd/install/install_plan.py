"""Plan `specd install`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.health_check import check_health
from specd.install.interpreter import Interpreter
from specd.install.plan import StepPlan
from specd.install.record import Record, fingerprint
from specd.install.steps import (
    Step,
    back_up_file,
    link_file,
    put_file,
    run_program,
    save_unit_states,
    start_unit,
)
from specd.install.venv import build_venv, restore_former_venv, swap_venv
from specd.install.venv_sources import Sources
from specd.port_owner import PortOwner, addresses_overlap

#: Space besides the copy: compiled code, the file system's journal, a model's manifest.
_DISK_MARGIN: Final = 1.3
#: The daemon starts each engine from ENVIRONMENT, which may be a newer version.
_STILL_RUNS: Final = (
    f"{layout.SERVICE} runs and is not restarted: its new engines have another version than"
    " the daemon, so answers may fail until `systemctl restart specd`"
)
RELOAD: Final = run_program("reload systemd's units", "systemctl", "daemon-reload")

#: What to build the environment from.
VenvContents = tuple[Interpreter, Sources]


def plan_install(
    facts: HostFacts,
    venv_contents: VenvContents | None,
    *,
    starts: bool = True,
    holder: PortOwner | None = None,
) -> StepPlan:
    """Return the plan.

    venv_contents: what to build the environment from; None if this program is the installed one.
    holder: the process that holds the port.  Raises InstallError if something prevents it.
    """
    check(facts, venv_contents)
    if starts and holder is not None:
        raise InstallError(_port_remark(facts, holder))
    steps = [
        save_unit_states(facts.service, facts.socket),
        write_record(installed_record(facts)),
        *install_steps(facts, venv_contents),
    ]
    outcome = [f"specd {facts.version} is installed; its settings are in {layout.ENV_FILE}"]
    if starts:
        steps += [
            # A user may have chosen to start the service by its socket.
            start_unit(
                layout.SERVICE, enable=facts.service.is_enabled or not facts.socket.is_enabled
            ),
            check_health(facts.address.url),
        ]
        outcome.append(f"It listens on {facts.address.url}; log: journalctl -u specd")
    elif facts.service.is_active:
        may_fail = "" if venv_contents is None else ", and answers may fail"
        outcome.append(
            f"the earlier specd still runs{may_fail}.  To restart it: systemctl restart specd"
        )
    else:
        outcome.append("To start it now and at every boot: systemctl enable --now specd")
    notes = (
        *remarks_on_unknowns(facts),
        *remarks(facts),
        *(_ollama_remark(facts) if starts else ()),
    )
    if facts.service.is_active and venv_contents is not None and not starts:
        notes += (_STILL_RUNS,)
    title = (
        f"Updating specd {facts.record.version} to" if facts.record.version else "Installing specd"
    )
    return StepPlan(f"{title} {facts.version}", tuple(steps), notes, tuple(outcome))


def check(facts: HostFacts, venv_contents: VenvContents | None) -> None:
    """Raise InstallError if the installation should not start."""
    for place in facts.read_only:
        if place != layout.COMMAND:
            raise InstallError(
                f"{place} is on a read-only file system; make it writable"
                " (mount -o remount,rw ...) and try again"
            )
    if venv_contents is None:
        return
    if layout.ENVIRONMENT in facts.folders and not facts.record.has_environment:
        raise InstallError(
            f"{layout.ENVIRONMENT} exists, but `specd install` did not create it; move it away"
        )
    needed = int(venv_contents[1].n_bytes * _DISK_MARGIN)
    if facts.free_bytes < needed:
        raise InstallError(
            f"{layout.ENVIRONMENT} needs {needed / 1e6:.0f} MB, but only"
            f" {facts.free_bytes / 1e6:.0f} MB are free there"
        )


def install_steps(facts: HostFacts, venv_contents: VenvContents | None) -> Iterator[Step]:
    """Yield all steps of an installation except its start."""
    if layout.FORMER in facts.folders and layout.ENVIRONMENT not in facts.folders:
        yield restore_former_venv()
    if venv_contents is not None:
        yield build_venv(*venv_contents)
        yield swap_venv()
        if facts.has_selinux:
            yield run_program("label it", "restorecon", "-R", layout.ENVIRONMENT)
    for path, content in facts.shipped.files.items():
        before = facts.contents.get(path, content)
        if before != content and fingerprint(before) != facts.record.files.get(path):
            yield back_up_file(path)
        yield put_file(path, content)
    yield run_program("create the user and the groups", "systemd-sysusers", layout.SYSUSERS)
    if layout.ENV_FILE not in facts.contents:
        # The daemon reads it again on SIGHUP; other users must not, since it may contain keys.
        why = "every setting, commented out"
        yield put_file(layout.ENV_FILE, facts.shipped.env_file, 0o640, layout.USER, why)
    yield run_program("", "systemd-tmpfiles", "--create", layout.TMPFILES)
    if _may_link(facts):
        yield link_file(layout.COMMAND, f"{layout.ENVIRONMENT}/bin/specd")
    yield RELOAD


def _may_link(facts: HostFacts) -> bool:
    is_ours = facts.command == f"{layout.ENVIRONMENT}/bin/specd"
    return layout.COMMAND not in facts.read_only and (facts.command is None or is_ours)


def installed_record(facts: HostFacts) -> Record:
    """Return the record of a complete installation, including entries of an earlier one."""
    files = {path: fingerprint(content) for path, content in facts.shipped.files.items()}
    return facts.record.replace(
        version=facts.version,
        files={**facts.record.files, **files},
        has_environment=True,
        has_command=_may_link(facts),
        made_user=facts.record.made_user or not facts.has_user,
    )


def write_record(record: Record) -> Step:
    """Return the first step of a plan, so that the next run knows about an interrupted one."""
    return put_file(layout.RECORD, record.bytes(), why="the record of this run")


def remarks_on_unknowns(facts: HostFacts) -> Iterator[str]:
    """Yield remarks on facts that are unknown."""
    if facts.ollama_error:
        yield f"the address of {layout.OLLAMA} is unknown: {facts.ollama_error}"
    if facts.systemd_error:
        yield f"the states of the units are unknown: {facts.systemd_error}"


def remarks(facts: HostFacts) -> Iterator[str]:
    if layout.ENV_FILE in facts.contents:
        yield f"{layout.ENV_FILE} exists and is not changed"
    if layout.COMMAND in facts.read_only:
        yield f"{layout.COMMAND} cannot be written; the command is {layout.ENVIRONMENT}/bin/specd"
    elif not _may_link(facts):
        yield f"{layout.COMMAND} belongs to another program and is not changed"


def _ollama_remark(facts: HostFacts) -> Iterator[str]:
    is_held = facts.record.taken_over is not None
    theirs = address_in(facts.ollama_environment)
    if facts.ollama.is_enabled and not is_held and addresses_overlap(theirs, facts.address):
        yield (
            f"{layout.OLLAMA} starts at boot too, on {theirs.url}, and one of the two will"
            " fail: use `specd migrate` to replace it, or `systemctl disable ollama`"
        )


def _port_remark(facts: HostFacts, holder: PortOwner) -> str:
    taken = f"{facts.address.url} is taken by {holder}"
    if holder.unit == layout.OLLAMA or (not holder.unit and "ollama" in holder.name):
        return f"{taken}: use `specd migrate` to replace it, or --no-start"
    return (
        f"{taken}: stop it, or give specd another address (OLLAMA_HOST in {layout.ENV_FILE}),"
        " or use --no-start"
    )
