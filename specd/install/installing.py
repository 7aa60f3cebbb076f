"""The plan of `specd install`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specd.errors import InstallError
from specd.install import layout
from specd.install.answer import Answers
from specd.install.environment import Build, PutBackFormer, Swap
from specd.install.facts import Facts, address_in
from specd.install.interpreter import Choice
from specd.install.plan import Plan
from specd.install.record import Record, fingerprint
from specd.install.sources import Sources
from specd.install.steps import KeepCopy, KeepUnits, PutFile, PutLink, Run, StartUnit, Step
from specd.port_holder import Holder, meet

#: Beside the copy itself: compiled code, the journal of the file system, a model's manifest.
_ROOM: Final = 1.3
#: It starts each engine from ENVIRONMENT, whatever is there.
_STILL_RUNS: Final = (
    f"{layout.SERVICE} runs, and is not restarted: its engines will be of another version than"
    " itself, and answers may fail, until `systemctl restart specd`"
)
RELOAD: Final = Run("let systemd read its units again", ("systemctl", "daemon-reload"))


def plan_install(
    facts: Facts,
    what: tuple[Choice, Sources] | None,
    *,
    starts: bool = True,
    holder: Holder | None = None,
) -> Plan:
    """what: to make the environment of; None where this program is the installed one.

    holder: who has the port.  Raises InstallError with what hinders it.
    """
    check(facts, what)
    if starts and holder is not None:
        raise InstallError(_taken(facts, holder))
    units = KeepUnits((facts.service, facts.socket))
    steps: list[Step] = [units, write_record(installed(facts)), *put_in_place(facts, what)]
    outcome = [f"specd {facts.version} is installed: settings in {layout.ENV_FILE}"]
    if starts:
        steps += [StartUnit(layout.SERVICE, enable=_enables(facts)), Answers(facts.address.url)]
        outcome.append(f"It listens on {facts.address.url}; log: journalctl -u specd")
    elif facts.service.is_active:
        until = "" if what is None else ", and answers may fail until then"
        outcome.append(f"specd still runs as it was before{until}: systemctl restart specd")
    else:
        outcome.append("Start it, now and at every boot: systemctl enable --now specd")
    said = (*unseen(facts), *remarks(facts), *(_rival(facts) if starts else ()))
    if facts.service.is_active and what is not None and not starts:
        said += (_STILL_RUNS,)
    done = (
        f"Updating specd {facts.record.version} to" if facts.record.version else "Installing specd"
    )
    return Plan(f"{done} {facts.version}", tuple(steps), said, tuple(outcome))


def check(facts: Facts, what: tuple[Choice, Sources] | None) -> None:
    """Raises InstallError where nothing should be begun."""
    for place in facts.read_only:
        if place != layout.COMMAND:
            raise InstallError(
                f"{place} lies on a file system that is read-only; make it writable"
                " (mount -o remount,rw ...) and try again"
            )
    if what is None:
        return
    if layout.ENVIRONMENT in facts.folders and not facts.record.has_environment:
        raise InstallError(
            f"{layout.ENVIRONMENT} is there, and `specd install` did not make it; move it away"
        )
    needed = int(what[1].n_bytes * _ROOM)
    if facts.free_bytes < needed:
        raise InstallError(
            f"{layout.ENVIRONMENT} needs {needed / 1e6:.0f} MB, and"
            f" {facts.free_bytes / 1e6:.0f} MB are free there"
        )


def put_in_place(facts: Facts, what: tuple[Choice, Sources] | None) -> Iterator[Step]:
    """All of an installation but its start."""
    if layout.FORMER in facts.folders and layout.ENVIRONMENT not in facts.folders:
        yield PutBackFormer()
    if what is not None:
        yield Build(*what)
        yield Swap()
        if facts.has_selinux:
            yield Run("label it", ("restorecon", "-R", layout.ENVIRONMENT))
    for path, content in facts.shipped.files.items():
        yield from _keep(facts, path, content)
        yield PutFile(path, content)
    yield Run("make the user and the groups", ("systemd-sysusers", layout.SYSUSERS))
    if layout.ENV_FILE not in facts.contents:
        # The daemon reads it again on SIGHUP; others must not: keys may stand in it.
        why = "every setting, commented out"
        yield PutFile(layout.ENV_FILE, facts.shipped.env_file, 0o640, layout.USER, why)
    yield Run("", ("systemd-tmpfiles", "--create", layout.TMPFILES))
    if _may_link(facts):
        yield PutLink(layout.COMMAND, f"{layout.ENVIRONMENT}/bin/specd")
    yield RELOAD


def _keep(facts: Facts, path: str, content: bytes) -> Iterator[Step]:
    """Whatever a person wrote there is not lost."""
    before = facts.contents.get(path)
    if before is None or before == content:
        return
    if fingerprint(before) != facts.record.files.get(path):
        yield KeepCopy(path, kept_name(path))


def kept_name(path: str) -> str:
    """No unit by its ending, so that systemd leaves it alone."""
    return f"{path}.kept-by-specd"


def _may_link(facts: Facts) -> bool:
    is_ours = facts.command == f"{layout.ENVIRONMENT}/bin/specd"
    return layout.COMMAND not in facts.read_only and (facts.command is None or is_ours)


def installed(facts: Facts) -> Record:
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


def unseen(facts: Facts) -> Iterator[str]:
    """What could not be found out."""
    if facts.unread:
        yield f"where {layout.OLLAMA} listens is not known, since {facts.unread}"
    if facts.unseen:
        yield f"which units run, and start at boot, is not known, since {facts.unseen}"


def remarks(facts: Facts) -> Iterator[str]:
    if layout.ENV_FILE in facts.contents:
        yield f"{layout.ENV_FILE} is there, and stays as it is"
    if layout.COMMAND in facts.read_only:
        yield f"{layout.COMMAND} cannot be written: the command is {layout.ENVIRONMENT}/bin/specd"
    elif not _may_link(facts):
        yield f"{layout.COMMAND} is somebody else's, and stays"


def _enables(facts: Facts) -> bool:
    """Not where the user chose that the socket starts it."""
    return facts.service.is_enabled or not facts.socket.is_enabled


def _rival(facts: Facts) -> Iterator[str]:
    is_held = facts.record.taken_over is not None
    theirs = address_in(facts.ollama_environment)
    if facts.ollama.is_enabled and not is_held and meet(theirs, facts.address):
        yield (
            f"{layout.OLLAMA} starts at boot too, on {theirs.url}, and one of the two will not"
            " have it: `specd migrate` takes over, or `systemctl disable ollama`"
        )


def _taken(facts: Facts, holder: Holder) -> str:
    said = f"{facts.address.url} is taken by {holder}"
    if holder.unit == layout.OLLAMA or (not holder.unit and "ollama" in holder.name):
        return f"{said}: `specd migrate` takes over from it, or say --no-start"
    return (
        f"{said}: stop it, or give specd another address (OLLAMA_HOST in {layout.ENV_FILE}),"
        " or say --no-start"
    )
