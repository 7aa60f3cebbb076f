"""What is done to the machine, one step at a time; each can be undone.

Step          words for the plan; do, undo, finish
├── PutFile, PutLink, RemoveFile, BackUpFile
├── RemoveTree
├── Run           a command that needs no undoing by itself
├── RemoveUser    last of a plan, as nothing brings a user back
├── SaveUnitStates     first of every plan: should a step fail, the services are again as they were
├── StartUnit, SetUnitStates
└── environment.py: Build, Swap;  answer.py: Answers
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
    """do may fail half-way: undo then takes back whatever is there.  finish: all went well."""

    @property
    @abstractmethod
    def words(self) -> str: ...

    @property
    def details(self) -> tuple[str, ...]:
        """Lines below the words: what a file will say."""
        return ()

    @abstractmethod
    def do(self, machine: HostSystem) -> None:
        """Raises InstallError or OSError."""

    def undo(self, machine: HostSystem) -> None:  # noqa: B027 - most steps change nothing else
        """Raises InstallError or OSError."""

    def finish(self, machine: HostSystem) -> None:  # noqa: B027
        """Let go of what undo would have needed."""


@dataclass
class PutFile(Step):
    """Written whole or not at all; what was there comes back with undo."""

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
    """with_folder: the folder too, if nothing else is in it."""

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
    """Of a file that somebody changed, before it is replaced or removed.

    An earlier copy, which may hold the only words of somebody else, moves on: `copy.1`, `copy.2`.
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
    """Moved aside at once, deleted at the very end, when nothing can fail any more.

    A mount point cannot be moved: what is in it is deleted at the end.
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
    """With the group of that name, where userdel leaves it (by USERGROUPS_ENAB of login.defs)."""

    name: str

    @property
    def words(self) -> str:
        return f"remove the user {self.name}, and its group"

    def do(self, machine: HostSystem) -> None:
        machine.run("userdel", self.name)
        if machine.has_group(self.name):
            with contextlib.suppress(CommandFailed):  # others were given it: it is theirs
                machine.run("groupdel", self.name)


@dataclass
class SaveUnitStates(Step):
    """Undone last, when all files are again what they were."""

    units: tuple[UnitState, ...]

    @property
    def words(self) -> str:
        states = "; ".join(unit.words for unit in self.units)
        return f"from here on, if a step fails, bring everything back to what it is now ({states})"

    def do(self, machine: HostSystem) -> None:
        pass

    def undo(self, machine: HostSystem) -> None:
        machine.set_unit_states(*self.units)


@dataclass
class StartUnit(Step):
    """Anew where it runs; systemd says it has started when the daemon says READY."""

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
        with contextlib.suppress(CommandFailed):  # it never failed
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
            if self._has_enabled:  # its links would outlive it
                machine.run("systemctl", "disable", self.unit)


@dataclass
class SetUnitStates(Step):
    """Units as they are to be after a migration; undoing is SaveUnitStates' business."""

    units: tuple[UnitState, ...]

    @property
    def words(self) -> str:
        return f"from then on: {'; '.join(unit.words for unit in self.units)}"

    def do(self, machine: HostSystem) -> None:
        machine.set_unit_states(*self.units)


def _journal(machine: HostSystem, unit: str) -> str:
    """What the unit said last, "" where nobody knows."""
    try:
        lines = machine.run(
            "journalctl", "-q", "-u", unit, "-n", str(_N_JOURNAL_LINES), "-o", "cat", "--no-pager"
        )
    except CommandFailed:
        return ""
    return f"\nIts last words:\n{lines.rstrip()}" if lines.strip() else ""


def delete_tree(path: Path) -> None:
    """A folder, a file or a link; nothing where there is none.  Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
