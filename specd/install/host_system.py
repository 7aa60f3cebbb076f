"""The machine that is changed: where its files are, whose they are, how its commands are run."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.errors import InstallError

#: Longer than any TimeoutStartSec= of ours: systemd itself says first what did not come up.
_TIMEOUT_S: Final = 900.0
_LAST_LINES: Final = 6


class CommandFailed(InstallError):
    """The sentence has the command and what it said."""


@dataclass(frozen=True)
class UnitState:
    """One unit as systemd knows it; is_enabled: it starts at boot by its own [Install].

    is_known: False in a dry run where systemd answers root alone; the states are then False too.
    """

    name: str
    is_there: bool = True
    is_active: bool = False
    is_enabled: bool = False
    is_known: bool = True

    @property
    def may_run(self) -> bool:
        return self.is_active or (self.is_there and not self.is_known)

    @property
    def words(self) -> str:
        if not self.is_there:
            return f"{self.name} not there"
        if not self.is_known:
            return f"{self.name} there, running or not"
        running = "running" if self.is_active else "stopped"
        return f"{self.name} {running}{', starts at boot' if self.is_enabled else ''}"


class HostSystem:
    """root: "/", but in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(self, *command: str) -> str:
        """What it wrote to stdout.  Raises CommandFailed."""
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"`{_command_text(command)}` failed: {error}") from error
        if done.returncode != 0:
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
            raise CommandFailed(f"`{_command_text(command)}` failed: {said or done.returncode}")
        return done.stdout

    def own(self, path: Path, group: str) -> None:
        """Root's, and that group's."""
        shutil.chown(path, "root", group)

    def has_group(self, name: str) -> bool:
        try:
            grp.getgrnam(name)
        except KeyError:
            return False
        return True

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """`systemctl show`, by property, each of one line; empty where there is no such unit."""
        wanted = [word for name in properties for word in ("-p", name)]
        lines = self.run("systemctl", "show", unit, *wanted).splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        return {name: found.get(name, "") for name in properties}

    def value(self, unit: str, name: str) -> str:
        """One property, whatever lines it has."""
        return self.run("systemctl", "show", unit, "-p", name, "--value").rstrip("\n")

    def unit(self, name: str) -> UnitState:
        said = self.show(name, "LoadState", "ActiveState", "UnitFileState")
        return UnitState(
            name,
            is_there=said["LoadState"] not in {"not-found", ""},
            is_active=said["ActiveState"] in {"active", "activating", "reloading"},
            is_enabled=said["UnitFileState"] == "enabled",
        )

    def set_unit_states(self, *wanted: UnitState) -> None:
        """Units read anew; those that must rest are stopped first (they may hold a port).

        A unit that is not there any more is left alone.
        """
        self.run("systemctl", "daemon-reload")
        pairs = [(unit, self.unit(unit.name)) for unit in wanted]
        pairs = [(unit, now) for unit, now in pairs if now.is_there]
        for unit, now in pairs:
            if now.is_active and not unit.is_active:
                self.run("systemctl", "stop", unit.name)
        for unit, now in pairs:
            if unit.is_enabled != now.is_enabled:
                self.run("systemctl", "enable" if unit.is_enabled else "disable", unit.name)
            if unit.is_active and not now.is_active:
                self.run("systemctl", "start", unit.name)


def _command_text(command: tuple[str, ...]) -> str:
    """A program given as an argument is no help to anybody."""
    return " ".join("..." if "\n" in word else word for word in command)
