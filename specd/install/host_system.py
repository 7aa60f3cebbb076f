"""Access the machine that a plan changes: its files, owners, commands and units."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.errors import InstallError

#: Longer than any TimeoutStartSec= of specd's units, so that systemd reports a timeout first.
_TIMEOUT_S: Final = 900.0
_LAST_LINES: Final = 6


class CommandFailed(InstallError):
    """A command failed; the text has the command and its error output."""


@dataclass(frozen=True)
class UnitState:
    """One unit as systemd knows it.

    is_enabled: its own [Install] section starts it at boot.
    is_known: False in a dry run where only root can ask systemd; the states are then False too.
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
            return f"{self.name} not installed"
        if not self.is_known:
            return f"{self.name} installed, state unknown"
        running = "running" if self.is_active else "stopped"
        return f"{self.name} {running}{', starts at boot' if self.is_enabled else ''}"


class HostSystem:
    """The machine.  root: "/" except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(self, *command: str) -> str:
        """Return the command's standard output.  Raises CommandFailed."""
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
        """Set the owner to root and to this group."""
        shutil.chown(path, "root", group)

    def has_group(self, name: str) -> bool:
        try:
            grp.getgrnam(name)
        except KeyError:
            return False
        return True

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return single-line properties from `systemctl show`; empty if there is no such unit."""
        wanted = [word for name in properties for word in ("-p", name)]
        lines = self.run("systemctl", "show", unit, *wanted).splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        return {name: found.get(name, "") for name in properties}

    def value(self, unit: str, name: str) -> str:
        """Return one property, which may have several lines."""
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
        """Reload the units and set their states; units that must stop are stopped first.

        They may hold a port that another one needs.  A unit that no longer exists is skipped.
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
    """Return the command as text, without the source code of an inline program."""
    return " ".join("..." if "\n" in word else word for word in command)
