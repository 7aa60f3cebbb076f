"""Gather the facts about the machine that the plans depend on."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import specd
from specd.daemon_address import DEFAULT_HOST, HOST_VARIABLE, strip_quotes
from specd.errors import BadSetting, InstallError
from specd.install import layout
from specd.install.host_system import CommandFailed, HostSystem, UnitState
from specd.install.layout import ShippedFiles, shipped
from specd.install.record import Record, read_record
from specd.install.systemd_syntax import parse_environment
from specd.install.unit_settings import UNIT_FOLDERS, UnitSettings, ask_systemd
from specd.port_owner import PortOwner, find_port_owner
from specd.settings import HostAddress, parse_host, read_env_file

_FOLDERS: Final = (
    *(layout.ENVIRONMENT, layout.STAGED, layout.FORMER, layout.STATE, layout.CONFIG),
    *(f"{layout.UNITS}/{unit}.d" for unit in (layout.SERVICE, layout.SOCKET, layout.OLLAMA)),
)
NO_SYSTEMD: Final = "systemd does not run here"


@dataclass(frozen=True)
class HostFacts:
    """The state of the machine before a plan is made.

    contents: the existing files among those that a plan may write or remove.
    folders: the existing folders among those of layout.py.
    command: the target of the link COMMAND; "" if it is not a link, None if it does not exist.
    environment: the variables of specd.service; own_settings: those from specd.env.
    ollama_environment: the variables of ollama.service.
    ollama_error: why these are unknown.  systemd_error: why the units' states are unknown.
    runs_installed: this program is the installed one.
    read_only: places on read-only file systems.  free_bytes: free disk space at ENVIRONMENT.
    """

    shipped: ShippedFiles
    version: str = "0"
    record: Record = field(default_factory=Record)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    command: str | None = None
    service: UnitState = field(default=UnitState(layout.SERVICE, exists=False))
    socket: UnitState = field(default=UnitState(layout.SOCKET, exists=False))
    ollama: UnitState = field(default=UnitState(layout.OLLAMA, exists=False))
    environment: Mapping[str, str] = field(default_factory=dict)
    own_settings: Mapping[str, str] = field(default_factory=dict)
    ollama_environment: Mapping[str, str] = field(default_factory=dict)
    ollama_error: str = ""
    systemd_error: str = ""
    has_user: bool = False
    has_selinux: bool = False
    runs_installed: bool = False
    read_only: tuple[str, ...] = ()
    free_bytes: int = 1 << 40

    @property
    def address(self) -> HostAddress:
        return address_in(self.environment)


def address_in(variables: Mapping[str, str]) -> HostAddress:
    """Return the address at which Ollama or specd listens with these variables.

    Both serve plain HTTP at the root; scheme and path are for clients behind a proxy.
    """
    named = strip_quotes(variables.get(HOST_VARIABLE, "")) or DEFAULT_HOST
    return replace(parse_host(named), scheme="http", path="")


def gather_facts(machine: HostSystem, *, dry_run: bool = False) -> HostFacts:
    """Return the facts.  dry_run: do without root's permissions and without systemd.

    Raises InstallError if systemd is missing, or if a plan is impossible.
    """
    if not machine.at("/run/systemd/system").is_dir():
        if not dry_run:
            raise InstallError(
                f"{NO_SYSTEMD}: `specd install` installs a systemd service."
                "  Elsewhere (a container, another init), let the container or init system run"
                " `specd serve`"
            )
        return _without_systemd(_file_facts(machine), machine, NO_SYSTEMD)
    facts = _file_facts(machine)
    try:
        return _with_units(facts, machine)
    except CommandFailed as error:
        if not dry_run:
            raise
        return _without_systemd(facts, machine, str(error))


def _file_facts(machine: HostSystem) -> HostFacts:
    """Return the facts that need no systemd."""
    shipped_files = shipped()
    record = read_record(machine.at(layout.RECORD))
    paths = {*shipped_files.files, *record.files, layout.ENV_FILE, layout.OLLAMA_ENV_FILE}
    environment = machine.at(layout.ENVIRONMENT)
    return HostFacts(
        shipped=shipped_files,
        version=specd.__version__,
        record=record,
        contents=dict(_contents(machine, {*paths, layout.DROP_IN, layout.PAUSE})),
        folders=frozenset(place for place in _FOLDERS if machine.at(place).is_dir()),
        command=_command(machine.at(layout.COMMAND)),
        environment=_from_file(machine, layout.OLLAMA_ENV_FILE)
        | _from_file(machine, layout.ENV_FILE),
        own_settings=_from_file(machine, layout.ENV_FILE),
        has_user=_has_user(layout.USER),
        has_selinux=machine.at("/sys/fs/selinux/enforce").exists(),
        runs_installed=Path(sys.prefix) == environment,
        read_only=tuple(_read_only(machine)),
        free_bytes=shutil.disk_usage(_nearest_existing(environment)).free,
    )


def _with_units(facts: HostFacts, machine: HostSystem) -> HostFacts:
    """Add what systemd knows about the units.  Raises CommandFailed."""
    ollama = machine.unit(layout.OLLAMA)
    settings = ask_systemd(machine) if ollama.exists else UnitSettings()
    variables, ollama_error = dict(settings.environment), ""
    try:
        variables |= settings.read_files(machine)
    except InstallError as error:  # only a migration needs them, and it fails without them
        variables, ollama_error = {}, str(error)
    return replace(
        facts,
        service=machine.unit(layout.SERVICE),
        socket=machine.unit(layout.SOCKET),
        ollama=ollama,
        # Files override the units' Environment=.
        environment=parse_environment(machine.value(layout.SERVICE, "Environment"))
        | dict(facts.environment),
        ollama_environment=variables,
        ollama_error=ollama_error,
    )


def _without_systemd(facts: HostFacts, machine: HostSystem, why: str) -> HostFacts:
    """Add what the unit files say, without systemd."""

    def unit(name: str) -> UnitState:
        exists = any(machine.at(f"{folder}/{name}").exists() for folder in UNIT_FOLDERS)
        return UnitState(name, exists=exists, is_known=False)

    service, socket, ollama = map(unit, (layout.SERVICE, layout.SOCKET, layout.OLLAMA))
    return replace(facts, service=service, socket=socket, ollama=ollama, systemd_error=why)


def _from_file(machine: HostSystem, path: str) -> dict[str, str]:
    try:
        return read_env_file(machine.at(path))
    except BadSetting:  # a dry run may lack the permission
        return {}


def find_port_holder(
    facts: HostFacts, address: HostAddress, *, replaced: Iterable[str] = ()
) -> PortOwner | None:
    """Return the process that holds the port, unless it is specd or a unit in `replaced`."""
    holder = find_port_owner(address)
    if holder is None or holder.unit in {layout.SERVICE, *replaced}:
        return None
    is_ours = facts.socket.is_active and holder.pid in {0, 1}
    is_hidden = not holder.pid and any(
        unit.may_run
        for unit in (facts.service, facts.ollama)
        if unit.name in {layout.SERVICE, *replaced}
    )
    return None if is_ours or is_hidden else holder


def _contents(machine: HostSystem, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for path in paths:
        try:
            yield path, machine.at(path).read_bytes()
        except FileNotFoundError:
            continue
        except PermissionError:  # a dry run without root
            yield path, b""


def _command(path: Path) -> str | None:
    if path.is_symlink():
        return str(path.readlink())
    return "" if path.exists() else None


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _read_only(machine: HostSystem) -> Iterable[str]:
    """Yield places on read-only file systems; permissions do not matter, since root has them."""
    for place in (layout.ENVIRONMENT, layout.UNITS, layout.CONFIG, layout.RECORD, layout.COMMAND):
        folder = _nearest_existing(machine.at(place).parent)
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            yield place


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(place for place in (path, *path.parents) if place.exists())
