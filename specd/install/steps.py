"""Define the steps of a plan, and the undo of each change that a step makes.

venv.py and health_check.py define further steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from specd.errors import InstallError
from specd.install.files import (
    FileSnapshot,
    delete_tree,
    put_link,
    staging_path,
    unused_path,
    write_whole,
)
from specd.install.host_system import CommandFailed, HostSystem, UnitState

_N_JOURNAL_LINES: Final = 8


class Undo:
    """The way back from the steps so far, and what to clean up after the last one.

    A step registers each revert before its change, so that a half-made change is reverted too.
    """

    def __init__(self) -> None:
        self.step = ""  # the text of the current step
        self._reverts: list[tuple[str, Callable[[], object]]] = []
        self._cleanups: list[Callable[[], object]] = []

    def add(self, revert: Callable[[], object]) -> None:
        self._reverts.append((self.step, revert))

    def add_cleanup(self, cleanup: Callable[[], object]) -> None:
        self._cleanups.append(cleanup)

    def revert(self) -> list[str]:
        """Revert the changes, the last one first; return a sentence for each that failed."""
        failures = []
        while self._reverts:
            step, revert = self._reverts.pop()
            try:
                revert()
            except Exception as error:  # noqa: BLE001 - the others are reverted all the same
                failures.append(f"{step}: {error}")
        return failures

    def clean_up(self) -> list[str]:
        """Clean up after success; return the errors.

        Leftovers only cost space, and the next run removes them.
        """
        errors = []
        for cleanup in self._cleanups:
            try:
                cleanup()
            except OSError as error:
                errors.append(str(error))
        return errors


@dataclass(frozen=True)
class Step:
    """A step of a plan.

    do: changes the machine; raises InstallError or OSError.  Steps with equal texts are equal.
    details: the lines below the step's text, e.g. a file's content.
    """

    words: str
    do: Callable[[HostSystem, Undo], object] = field(compare=False)
    details: tuple[str, ...] = ()


# --------------------------------------------------------------------------- files


def save_file(path: Path, undo: Undo) -> FileSnapshot | None:
    """Register the restoration of a file or link, or of its absence; return its state."""
    before = FileSnapshot.of(path)
    missing = [folder for folder in path.parents if not folder.exists()]

    def restore() -> None:
        if before is not None:
            before.restore(path)
            return
        path.unlink(missing_ok=True)
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()

    undo.add(restore)
    return before


def rename(source: Path, target: Path, undo: Undo) -> None:
    """Rename a file, a link or a folder."""

    def restore() -> None:
        if os.path.lexists(target) and not os.path.lexists(source):
            target.rename(source)

    undo.add(restore)
    source.rename(target)


def put_file(
    path: str,
    content: bytes,
    mode: int = 0o644,
    group: str = "root",
    why: str = "",
    *,
    shows: bool = False,
) -> Step:
    """Return a step that writes a file atomically.  shows: print the content in the plan."""

    def do(machine: HostSystem, undo: Undo) -> None:
        save_file(machine.at(path), undo)
        machine.at(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(machine.at(path), content, mode, own=lambda new: machine.own(new, group))

    rights = "" if mode == 0o644 else f" (mode {mode:04o}, root:{group})"
    details = tuple(content.decode().splitlines()) if shows else ()
    return Step(f"write {path}{rights}{why and ': '}{why}", do, details)


def link_file(path: str, target: str) -> Step:
    def do(machine: HostSystem, undo: Undo) -> None:
        save_file(machine.at(path), undo)
        machine.at(path).parent.mkdir(parents=True, exist_ok=True)
        put_link(machine.at(path), target)

    return Step(f"link {path} to {target}", do)


def remove_file(path: str, *, with_folder: bool = False) -> Step:
    """Return a step that removes a file.  with_folder: its folder too, if it is then empty."""

    def do(machine: HostSystem, undo: Undo) -> None:
        file = machine.at(path)
        save_file(file, undo)
        file.unlink(missing_ok=True)
        staging_path(file).unlink(missing_ok=True)
        if with_folder:
            with contextlib.suppress(OSError):
                file.parent.rmdir()

    return Step(f"remove {path}", do)


def back_up_file(path: str) -> Step:
    """Return a step that copies a file changed by hand, before it is replaced or removed.

    An earlier copy is renamed to `copy.1` or `copy.2`, since it may be the only one.
    """
    name = f"{path}.kept-by-specd"  # without a unit's suffix, so that systemd ignores the file

    def do(machine: HostSystem, undo: Undo) -> None:
        copy = machine.at(name)
        changed, earlier = FileSnapshot.of(machine.at(path)), FileSnapshot.of(copy)
        if changed is None or changed == earlier:
            return
        if earlier is not None:
            rename(copy, unused_path(copy), undo)
        save_file(copy, undo)
        changed.restore(copy)

    return Step(f"keep {path}, which was changed by hand, as {name}", do)


def remove_tree(path: str, why: str = "") -> Step:
    """Return a step that moves a folder away at once, and deletes it after the last step.

    A mount point cannot be moved, so its contents are deleted at the end.
    """

    def do(machine: HostSystem, undo: Undo) -> None:
        folder = machine.at(path)
        if folder.is_mount():
            for entry in folder.iterdir():
                undo.add_cleanup(partial(delete_tree, entry))
        elif folder.exists():
            trash = folder.with_name(f".{folder.name}.removed-by-specd")
            delete_tree(trash)
            rename(folder, trash, undo)
            undo.add_cleanup(partial(delete_tree, trash))

    return Step(f"delete {path}{why and ': '}{why}", do)


# --------------------------------------------------------------------------- commands and units


def run_program(words: str, *command: str) -> Step:
    """Return a step that runs a command which needs no undo of its own."""
    line = " ".join(command)
    return Step(f"{words}: {line}" if words else line, lambda machine, _: machine.run(*command))


def remove_user(name: str) -> Step:
    """Return a step that removes a user, and its group if userdel leaves it (USERGROUPS_ENAB).

    It cannot be undone, so it is the last step of a plan.
    """

    def do(machine: HostSystem, _: Undo) -> None:
        machine.run("userdel", name)
        if machine.has_group(name):
            with contextlib.suppress(CommandFailed):  # the group has other members
                machine.run("groupdel", name)

    return Step(f"remove the user {name} and its group", do)


def save_unit_states(*units: UnitState) -> Step:
    """Return the first step of a plan: its undo restores the units after all files."""

    def do(machine: HostSystem, undo: Undo) -> None:
        undo.add(lambda: machine.set_unit_states(*units))

    states = "; ".join(unit.words for unit in units)
    return Step(f"if a later step fails, restore the current state ({states})", do)


def set_unit_states(*units: UnitState) -> Step:
    """Return a step that sets the units' states; save_unit_states() undoes it."""
    states = "; ".join(unit.words for unit in units)
    return Step(f"set the units: {states}", lambda machine, _: machine.set_unit_states(*units))


def start_unit(unit: str, *, enable: bool = True) -> Step:
    """Return a step that starts or restarts a unit, and waits for the daemon's READY."""

    def do(machine: HostSystem, undo: Undo) -> None:
        if enable and not machine.unit(unit).is_enabled:
            # Its links would remain otherwise.
            undo.add(lambda: machine.run("systemctl", "disable", unit))
            machine.run("systemctl", "enable", unit)
        undo.add(lambda: machine.run("systemctl", "stop", unit))
        with contextlib.suppress(CommandFailed):  # the unit has not failed before
            machine.run("systemctl", "reset-failed", unit)
        try:
            machine.run("systemctl", "restart", unit)
        except CommandFailed as error:
            raise InstallError(
                f"{unit} does not start: {error}{_journal(machine, unit)}"
            ) from error

    at_boot = ", now and at every boot" if enable else ""
    return Step(f"start {unit}{at_boot}, and wait until it is ready", do)


def _journal(machine: HostSystem, unit: str) -> str:
    """Return the unit's last log lines, "" if there are none."""
    n_lines = str(_N_JOURNAL_LINES)
    try:
        lines = machine.run("journalctl", "-qu", unit, "-n", n_lines, "-o", "cat", "--no-pager")
    except CommandFailed:
        return ""
    return f"\nIts last log lines:\n{lines.rstrip()}" if lines.strip() else ""
