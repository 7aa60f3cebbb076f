"""Read a service's settings from its unit files, for a dry run that cannot ask systemd."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from specd.install import layout
from specd.install.host_system import HostSystem

#: The folders of units, a distribution's first: a later folder wins.
UNIT_FOLDERS: Final = (
    *("/usr/lib/systemd/system", "/lib/systemd/system", "/usr/local/lib/systemd/system"),
    *("/run/systemd/system", layout.UNITS),
)
_TRUE: Final = frozenset({"1", "yes", "y", "true", "t", "on"})


class UnitFiles:
    """Unit files that answer like `HostSystem.show` and `HostSystem.value`.

    Specifiers other than `%%` are not expanded.
    """

    def __init__(self, machine: HostSystem) -> None:
        self._machine = machine

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return the last value of each property; "" for an unset one."""
        settings = self._settings(unit)
        found = {name: settings.get(name, [""])[-1] for name in properties}
        return {name: _as_shown(name, value) for name, value in found.items()}

    def value(self, unit: str, name: str) -> str:
        """Return a list property: `Environment` or `EnvironmentFiles`."""
        settings = self._settings(unit)
        if name == "Environment":
            return " ".join(_quoted(word) for word in _words(settings.get(name, ())))
        return "\n".join(_shown_file(path) for path in settings.get("EnvironmentFile", ()))

    def _settings(self, unit: str) -> dict[str, list[str]]:
        """Return the values of [Service] in order; an empty value clears the earlier ones."""
        found: dict[str, list[str]] = {}
        for path in self._files(unit):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # a dry run may lack the permission
                continue
            for name, value in _service_lines(text):
                found[name] = [*found.get(name, ()), value] if value else [""]
        return {name: [v for v in values if v] or [""] for name, values in found.items()}

    def _files(self, unit: str) -> Iterator[Path]:
        """Yield the unit's file, then its drop-ins, in systemd's order."""
        folders = [self._machine.at(folder) for folder in UNIT_FOLDERS]
        yield from [folder / unit for folder in folders if (folder / unit).is_file()][-1:]
        drop_ins = {p.name: p for folder in folders for p in (folder / f"{unit}.d").glob("*.conf")}
        yield from (drop_ins[name] for name in sorted(drop_ins))


def _service_lines(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped
        elif section == "[Service]" and not stripped.startswith(("#", ";")) and "=" in stripped:
            name, _, value = stripped.partition("=")
            yield name.strip(), value.strip()


def _words(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        try:
            yield from (word.replace("%%", "%") for word in shlex.split(value))
        except ValueError:  # an unclosed quote: systemd ignores such a line
            continue


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _shown_file(path: str) -> str:
    optional = path.startswith("-")
    return f"{path.removeprefix('-')} (ignore_errors={'yes' if optional else 'no'})"


def _as_shown(name: str, value: str) -> str:
    if name == "DynamicUser":
        return "yes" if value.lower() in _TRUE else "no"
    return value
