"""Define the steps that change the machine; each can be undone.

Step          text for the plan; do, undo, finish
├── PutFile, PutLink, RemoveFile, BackUpFile
├── RemoveTree
├── RunProgram    a command that needs no undo of its own
├── RemoveUser    the last step of a plan, as it cannot be undone
├── SaveUnitStates     the first step of a plan: its undo restores the services
├── StartUnit, SetUnitStates
└── venv_steps.py: BuildVenv, SwapVenv;  health_check.py: CheckHealth
"""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from specd.errors import InstallError
from specd.install.file_snapshot import (
    FileSnapshot,
    put_link,
    staging_path,
    unused_path,
    write_whole,
)
from specd.install.host_system import CommandFailed, HostSystem, UnitState

_N_JOURNAL_LINES = 8


class Step(ABC):
    """A step of a plan.

    do: may fail half-way; undo then reverts any part.  finish: called after all steps succeeded.
    """

    @property
    @abstractmethod
    def words(self) -> str: ...

    @property
    def details(self) -> tuple[str, ...]:
        """Return the lines below the step's text, e.g. a file's content."""
        return ()

    @abstractmethod
    def do(self, machine: HostSystem) -> None:
        """Run the step.  Raises InstallError or OSError."""

    def undo(self, machine: HostSystem) -> None:  # noqa: B027 - most steps change nothing else
        """Revert the step.  Raises InstallError or OSError."""

    def finish(self, machine: HostSystem) -> None:  # noqa: B027
        """Drop what only undo needs."""


@dataclass
class PutFile(Step):
    """A step that writes a file atomically; undo restores the earlier one."""

    path: str
    content: bytes
    mode: int = 0o644
    group: str = "root"
    why: str = ""
    shows: bool = False
    _before: FileSnapshot | None = field(default=None, init=False, repr=False, compare=False)
    _folders: list[Path] = field(default_factory=list, init=False, repr=False, compare=False)
    _was_reached: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        rights = "" if self.mode == 0o644 else f" (mode {self.mode:04o}, root:{self.group})"
        return f"write {self.path}{rights}{self.why and ': '}{self.why}"

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(self.content.decode().splitlines()) if self.shows else ()

    def do(self, machine: HostSystem) -> None:
        path = machine.at(self.path)
        self._before = FileSnapshot.of(path)
        self._was_reached = True
        missing = [folder for folder in path.parents if not folder.exists()]
        self._folders = missing
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.content, self.mode, own=lambda new: machine.own(new, self.group))

    def undo(self, machine: HostSystem) -> None:
        if not self._was_reached:
            return
        path = machine.at(self.path)
        if self._before is not None:
            self._before.restore(path)
            return
        path.unlink(missing_ok=True)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass
class PutLink(Step):
    path: str
    target: str
    _before: FileSnapshot | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        return f"link {self.path} to {self.target}"

    def do(self, machine: HostSystem) -> None:
        path = machine.at(self.path)
        self._before = FileSnapshot.of(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        put_link(path, self.target)

    def undo(self, machine: HostSystem) -> None:
        path = machine.at(self.path)
        if self._before is not None:
            self._before.restore(path)
        elif path.is_symlink() and str(path.readlink()) == self.target:
            path.unlink()


@dataclass
class RemoveFile(Step):
    """A step that removes a file.  with_folder: its folder too, if it is then empty."""

    path: str
    with_folder: bool = False
    _before: FileSnapshot | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        return f"remove {self.path}"

    def do(self, machine: HostSystem) -> None:
        path = machine.at(self.path)
        self._before = FileSnapshot.of(path)
        path.unlink(missing_ok=True)
        staging_path(path).unlink(missing_ok=True)
        if self.with_folder:
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def undo(self, machine: HostSystem) -> None:
        if self._before is not None:
            self._before.restore(machine.at(self.path))


@dataclass
class BackUpFile(Step):
    """A step that copies a file changed by hand, before it is replaced or removed.

    An earlier copy is renamed to `copy.1` or `copy.2`, since it may be the only one.
    """

    path: str
    copy: str
    _earlier: Path | None = field(default=None, init=False, repr=False, compare=False)
    _has_written: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        return f"keep {self.path}, which was changed by hand, as {self.copy}"

    def do(self, machine: HostSystem) -> None:
        path, copy = machine.at(self.path), machine.at(self.copy)
        changed, kept = FileSnapshot.of(path), FileSnapshot.of(copy)
        if changed is None or changed == kept:
            return
        if kept is not None:
            self._earlier = unused_path(copy)
            copy.rename(self._earlier)
        self._has_written = True
        changed.restore(copy)

    def undo(self, machine: HostSystem) -> None:
        copy = machine.at(self.copy)
        if self._has_written:
            copy.unlink(missing_ok=True)
        if self._earlier is not None and os.path.lexists(self._earlier):
            self._earlier.rename(copy)


@dataclass
class RemoveTree(Step):
    """A step that moves a folder away at once, and deletes it after all steps succeeded.

    A mount point cannot be moved, so its contents are deleted at the end.
    """

    path: str
    why: str = ""

    @property
    def words(self) -> str:
        return f"delete {self.path}{self.why and ': '}{self.why}"

    def _trash_path(self, machine: HostSystem) -> Path:
        path = machine.at(self.path)
        return path.with_name(f".{path.name}.removed-by-specd")

    def do(self, machine: HostSystem) -> None:
        path, trash_path = machine.at(self.path), self._trash_path(machine)
        if not path.exists() or path.is_mount():
            return
        delete_tree(trash_path)
        path.rename(trash_path)

    def undo(self, machine: HostSystem) -> None:
        if (trash_path := self._trash_path(machine)).exists():
            trash_path.rename(machine.at(self.path))

    def finish(self, machine: HostSystem) -> None:
        delete_tree(self._trash_path(machine))
        path = machine.at(self.path)
        if path.is_mount():
            for entry in path.iterdir():
                delete_tree(entry)


@dataclass
class RunProgram(Step):
    says: str
    command: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"{self.says}: {' '.join(self.command)}" if self.says else " ".join(self.command)

    def do(self, machine: HostSystem) -> None:
        machine.run(*self.command)


@dataclass
class RemoveUser(Step):
    """A step that removes a user, and its group if userdel leaves it (see USERGROUPS_ENAB)."""

    name: str

    @property
    def words(self) -> str:
        return f"remove the user {self.name} and its group"

    def do(self, machine: HostSystem) -> None:
        machine.run("userdel", self.name)
        if machine.has_group(self.name):
            with contextlib.suppress(CommandFailed):  # the group has other members
                machine.run("groupdel", self.name)


@dataclass
class SaveUnitStates(Step):
    """A step whose undo restores the units, after all files have been restored."""

    units: tuple[UnitState, ...]

    @property
    def words(self) -> str:
        states = "; ".join(unit.words for unit in self.units)
        return f"if a later step fails, restore the current state ({states})"

    def do(self, machine: HostSystem) -> None:
        pass

    def undo(self, machine: HostSystem) -> None:
        machine.set_unit_states(*self.units)


@dataclass
class StartUnit(Step):
    """A step that starts or restarts a unit, and waits for the daemon's READY."""

    unit: str
    enable: bool = True
    _has_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    _was_reached: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        at_boot = ", now and at every boot" if self.enable else ""
        return f"start {self.unit}{at_boot}, and wait until it is ready"

    def do(self, machine: HostSystem) -> None:
        self._was_reached = True
        if self.enable and not machine.unit(self.unit).is_enabled:
            self._has_enabled = True
            machine.run("systemctl", "enable", self.unit)
        with contextlib.suppress(CommandFailed):  # the unit has not failed before
            machine.run("systemctl", "reset-failed", self.unit)
        try:
            machine.run("systemctl", "restart", self.unit)
        except CommandFailed as error:
            raise InstallError(
                f"{self.unit} does not start: {error}{_journal(machine, self.unit)}"
            ) from error

    def undo(self, machine: HostSystem) -> None:
        try:
            if self._was_reached:
                machine.run("systemctl", "stop", self.unit)
        finally:
            if self._has_enabled:  # its links would remain otherwise
                machine.run("systemctl", "disable", self.unit)


@dataclass
class SetUnitStates(Step):
    """A step that sets the units' states after a migration; SaveUnitStates undoes it."""

    units: tuple[UnitState, ...]

    @property
    def words(self) -> str:
        return f"set the units: {'; '.join(unit.words for unit in self.units)}"

    def do(self, machine: HostSystem) -> None:
        machine.set_unit_states(*self.units)


def _journal(machine: HostSystem, unit: str) -> str:
    """Return the unit's last log lines, "" if there are none."""
    try:
        lines = machine.run(
            "journalctl", "-q", "-u", unit, "-n", str(_N_JOURNAL_LINES), "-o", "cat", "--no-pager"
        )
    except CommandFailed:
        return ""
    return f"\nIts last log lines:\n{lines.rstrip()}" if lines.strip() else ""


def delete_tree(path: Path) -> None:
    """Delete a folder, a file or a link, if it exists.  Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
