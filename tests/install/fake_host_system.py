"""A machine below a folder: real files, and a systemd made of dictionaries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from specd.install import (
    StepPlan,
    VenvContents,
    apply_plan,
    gather_facts,
    layout,
    plan_install,
    plan_migrate,
    read_ollama_service,
)
from specd.install.host_system import CommandFailed, HostSystem
from specd.install.interpreter import Interpreter
from specd.install.venv_sources import Sources

PYTHON = Interpreter("/usr/bin/python3.11", "/usr", "/usr/lib/python3.11", "cpython-311", "3.11")


class FakeHostSystem(HostSystem):
    """properties: what `systemctl show` says of a unit beyond its states.

    on_command: called before each command; may raise.  done: commands that change something.
    answers: whether this systemd is to be asked.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.active: set[str] = set()
        self.enabled: set[str] = set()
        self.properties: dict[str, dict[str, str]] = {}
        self.groups: dict[str, str] = {}
        self.done: list[str] = []
        self.answers = True
        self.on_command: Callable[[str], None] = lambda _: None
        self.at("/run/systemd/system").mkdir(parents=True)
        for folder in ("/opt", "/etc", "/var/lib", "/usr/local/bin", layout.UNITS):
            self.at(folder).mkdir(parents=True, exist_ok=True)

    def own(self, path: Path, group: str) -> None:
        self.groups[path.name.removeprefix(".").rpartition(".")[0]] = group

    def run(self, *command: str) -> str:
        line = " ".join(command)
        if command[:2] == ("systemctl", "show"):
            return self._show(command)
        self.on_command(line)
        self.done.append(line)
        match command:
            case ("systemctl", "daemon-reload" | "reset-failed", *_):
                pass
            case ("userdel" | "groupdel", _):
                pass
            case ("systemctl", verb, *names):
                self._systemctl(verb, set(names) - {"--now"}, now="--now" in names)
            case (_, "-I", "-m", "venv", *_, folder):
                Path(folder, "bin").mkdir(parents=True)
            case (_, "-I", "-m", "compileall", *_) | ("systemd-sysusers" | "systemd-tmpfiles", *_):
                pass
            case (_, "-I", "-c", _):
                return "[]"
            case ("journalctl", *_):
                return "its last words\n"
            case _:
                raise CommandFailed(f"no such command: {line}")
        return ""

    def _systemctl(self, verb: str, names: set[str], *, now: bool) -> None:
        for name in names:
            if not self.at(f"{layout.UNITS}/{name}").exists():
                raise CommandFailed(f"Unit {name} not found")
        if verb == "enable":
            self.enabled |= names
        if verb == "disable":
            self.enabled -= names
        if verb == "stop" or (verb == "disable" and now):
            self.active -= names
        if verb in {"start", "restart"}:
            is_paused = self.at(layout.PAUSE).exists() and self.at(layout.DROP_IN).exists()
            self.active |= names - ({layout.OLLAMA} if is_paused else set())

    def _show(self, command: tuple[str, ...]) -> str:
        if not self.answers:
            raise CommandFailed("Failed to connect to bus: No such file or directory")
        unit = command[2]
        exists = self.at(f"{layout.UNITS}/{unit}").exists()
        said = {
            "LoadState": "loaded" if exists else "not-found",
            "ActiveState": "active" if unit in self.active else "inactive",
            "UnitFileState": "enabled" if unit in self.enabled else "disabled",
            **self.properties.get(unit, {}),
        }
        names = [word for before, word in pairwise(command) if before == "-p"]
        if "--value" in command:
            return said.get(names[0], "") + "\n"
        return "".join(f"{name}={said.get(name, '')}\n" for name in names)

    def put(self, path: str, text: str) -> Path:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def snapshot(self) -> dict[str, object]:
        """Return all files with their modes, and the running services."""
        found: dict[str, object] = {
            str(path.relative_to(self.root)): _fact(path) for path in sorted(self.root.rglob("*"))
        }
        return {**found, "active": sorted(self.active), "enabled": sorted(self.enabled)}


def _fact(path: Path) -> tuple[str, str]:
    mode = oct(path.lstat().st_mode)
    if path.is_symlink():
        return mode, str(path.readlink())
    return mode, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def write_small_sources(folder: Path, text: str = "one") -> VenvContents:
    """Return a Python and one module to copy instead of specd and its packages."""
    folder.mkdir(parents=True, exist_ok=True)
    module = folder / "module.py"
    module.write_text(f"{text!r}\n")
    sources = Sources({Path("specd/module.py"): module}, ("specd", "x"), (), 100)
    return PYTHON, sources


def install(machine: FakeHostSystem, sources: Path, text: str = "one") -> StepPlan:
    plan = plan_install(gather_facts(machine), write_small_sources(sources, text))
    apply_plan(plan, machine, print)
    return plan


def migration(machine: FakeHostSystem, sources: Path) -> StepPlan:
    return plan_migrate(
        gather_facts(machine), read_ollama_service(machine), write_small_sources(sources)
    )


def words(plan: StepPlan) -> str:
    return "\n".join(plan.lines())
