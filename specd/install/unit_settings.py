"""Read the settings of ollama.service: from systemd, or from unit files for a dry run without it.

Unit files are read in systemd's order; specifiers other than `%%` are not expanded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specd.errors import BadSetting, InstallError
from specd.install.host_system import HostSystem
from specd.install.layout import OLLAMA, UNITS
from specd.install.systemd_syntax import parse_environment, parse_environment_files
from specd.settings import read_env_file

#: The folders of units, a distribution's first: a later folder wins.
UNIT_FOLDERS: Final = (
    *("/usr/lib/systemd/system", "/lib/systemd/system", "/usr/local/lib/systemd/system"),
    *("/run/systemd/system", UNITS),
)
_TRUE: Final = frozenset({"1", "yes", "y", "true", "t", "on"})


@dataclass(frozen=True)
class UnitSettings:
    """The settings of a service with its drop-ins; "" for an unset one.

    environment: variables of the units.  files: the paths of EnvironmentFile=.
    """

    user: str = ""
    group: str = ""
    umask: str = ""
    has_dynamic_user: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def read_files(self, machine: HostSystem) -> dict[str, str]:
        """Return the variables of the files, which override `environment`.

        Raises InstallError if a file is unreadable.
        """
        variables: dict[str, str] = {}
        for path in self.files:
            try:
                variables |= read_env_file(machine.at(str(path)))
            except BadSetting as error:
                raise InstallError(f"{OLLAMA} has settings in a file: {error}") from error
        return variables


def ask_systemd(machine: HostSystem) -> UnitSettings:
    """Return the settings that systemd has loaded.  Raises CommandFailed."""
    found = machine.show(OLLAMA, "User", "Group", "UMask", "DynamicUser")
    return UnitSettings(
        found["User"],
        found["Group"],
        found["UMask"],
        found["DynamicUser"] == "yes",
        parse_environment(machine.value(OLLAMA, "Environment")),
        parse_environment_files(machine.value(OLLAMA, "EnvironmentFiles").splitlines()),
    )


def read_unit_files(machine: HostSystem) -> UnitSettings:
    """Return the settings in the unit's file and its drop-ins, as far as they are readable."""
    values: dict[str, list[str]] = {}
    for path in _unit_files(machine):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # a dry run may lack the permission
            continue
        for name, value in _service_lines(text):  # an empty value clears the earlier ones
            values[name] = [*values.get(name, ()), value] if value else []
    last = {name: found[-1] for name, found in values.items() if found}
    words = [word for value in values.get("Environment", ()) for word in _words(value)]
    return UnitSettings(
        last.get("User", ""),
        last.get("Group", ""),
        last.get("UMask", ""),
        last.get("DynamicUser", "").lower() in _TRUE,
        dict(word.split("=", 1) for word in words if "=" in word),
        tuple(Path(path.removeprefix("-")) for path in values.get("EnvironmentFile", ())),
    )


def _unit_files(machine: HostSystem) -> Iterator[Path]:
    """Yield the unit's file, then its drop-ins."""
    folders = [machine.at(folder) for folder in UNIT_FOLDERS]
    yield from [folder / OLLAMA for folder in folders if (folder / OLLAMA).is_file()][-1:]
    drop_ins = {p.name: p for folder in folders for p in (folder / f"{OLLAMA}.d").glob("*.conf")}
    yield from (drop_ins[name] for name in sorted(drop_ins))


def _service_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line of [Service]."""
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped
        elif section == "[Service]" and not stripped.startswith(("#", ";")) and "=" in stripped:
            name, _, value = stripped.partition("=")
            yield name.strip(), value.strip()


def _words(value: str) -> Iterable[str]:
    try:
        return [word.replace("%%", "%") for word in shlex.split(value)]
    except ValueError:  # an unclosed quote: systemd ignores such a line
        return ()
