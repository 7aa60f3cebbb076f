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
    exists: bool = True
    is_active: bool = False
    is_enabled: bool = False
    is_known: bool = True

    @property
    def may_run(self) -> bool:
        return self.is_active or (self.exists and not self.is_known)

    @property
    def words(self) -> str:
        if not self.exists:
            return f"{self.name} not installed"
        if not self.is_known:
            return f"{self.name} installed, state unknown"
        running = "running" if self.is_active else "stopped"
        return f"{self.name} {running}{', starts at boot' if self.is_enabled else ''}"


class HostSystem:
    """The machine.

    root: "/" except in tests.  timeout_s: the limit of a command.
    """

    def __init__(self, root: Path = Path("/"), timeout_s: float = _TIMEOUT_S) -> None:
        self.root = root
        self._timeout_s = timeout_s

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
                timeout=self._timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"`{_command_text(command)}` failed: {error}") from error
        if done.returncode != 0:
            output = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
            raise CommandFailed(f"`{_command_text(command)}` failed: {output or done.returncode}")
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
        """Return single-line properties from `systemctl show`; "" for those without a value.

        A property that occurs several times (Listen) becomes one value with a line each.
        """
        names = [word for name in properties for word in ("-p", name)]
        found: dict[str, list[str]] = {name: [] for name in properties}
        for line in self.run("systemctl", "show", unit, *names).splitlines():
            name, is_property, value = line.partition("=")
            if is_property and name in found:
                found[name].append(value)
        return {name: "\n".join(values) for name, values in found.items()}

    def value(self, unit: str, name: str) -> str:
        """Return one property, which may have several lines."""
        return self.run("systemctl", "show", unit, "-p", name, "--value").rstrip("\n")

    def unit(self, name: str) -> UnitState:
        state = self.show(name, "LoadState", "ActiveState", "UnitFileState")
        return UnitState(
            name,
            exists=state["LoadState"] not in {"not-found", ""},
            is_active=state["ActiveState"] in {"active", "activating", "reloading"},
            is_enabled=state["UnitFileState"] == "enabled",
        )

    def set_unit_states(self, *wanted: UnitState) -> None:
        """Reload the units and set their states; units that must stop are stopped first.

        They may hold a port that another one needs.  A unit that no longer exists is skipped.
        """
        self.run("systemctl", "daemon-reload")
        pairs = [(unit, self.unit(unit.name)) for unit in wanted]
        pairs = [(unit, now) for unit, now in pairs if now.exists]
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
