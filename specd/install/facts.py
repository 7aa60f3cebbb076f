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
from specd.errors import BadSetting, InstallError
from specd.install import layout
from specd.install.host_system import CommandFailed, HostSystem, UnitState
from specd.install.layout import ShippedFiles, shipped
from specd.install.ollama_service import plain, read_environment
from specd.install.record import Record, read_record
from specd.install.systemd_syntax import parse_environment
from specd.install.unit_files import UNIT_FOLDERS
from specd.port_owner import PortOwner, find_port_owner
from specd.settings import HostAddress, parse_host, read_env_file

_NO_SERVICE, _NO_SOCKET, _NO_OLLAMA = (
    UnitState(name, is_there=False) for name in (layout.SERVICE, layout.SOCKET, layout.OLLAMA)
)
_DEFAULT_HOST: Final = "127.0.0.1:11434"
NO_SYSTEMD: Final = "systemd does not run here"


@dataclass(frozen=True)
class HostFacts:
    """The state of the machine before a plan is made.

    contents: the existing files among those that a plan may write or remove.
    folders: the existing folders among those of layout.py.
    command: the target of the link COMMAND; "" if it is not a link, None if it does not exist.
    environment: the variables of specd.service; own_settings: those from specd.env.
    ollama_environment: the variables of ollama.service; unread: why some are missing.
    unseen: why systemd could not report the units, "" if it did.
    runs_installed: this program is the installed one.
    read_only: places on read-only file systems.  free_bytes: free disk space at ENVIRONMENT.
    """

    shipped: ShippedFiles
    version: str = "0"
    record: Record = field(default_factory=Record)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    command: str | None = None
    service: UnitState = _NO_SERVICE
    socket: UnitState = _NO_SOCKET
    ollama: UnitState = _NO_OLLAMA
    environment: Mapping[str, str] = field(default_factory=dict)
    own_settings: Mapping[str, str] = field(default_factory=dict)
    ollama_environment: Mapping[str, str] = field(default_factory=dict)
    unread: str = ""
    unseen: str = ""
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
    named = plain(variables.get("OLLAMA_HOST", "")) or _DEFAULT_HOST
    return replace(parse_host(named), scheme="http", path="")


def gather_facts(machine: HostSystem, *, dry_run: bool = False) -> HostFacts:
    """Return the facts.  dry_run: do without root's permissions and without systemd.

    Raises InstallError if systemd is missing, or if a plan is impossible.
    """
    has_systemd = machine.at("/run/systemd/system").is_dir()
    if not has_systemd and not dry_run:
        raise InstallError(
            f"{NO_SYSTEMD}: `specd install` installs a systemd service."
            "  Elsewhere (a container, another init), let the container or init system run"
            " `specd serve`"
        )
    brought = shipped()
    record = read_record(machine.at(layout.RECORD))
    paths = {*brought.files, *record.files, layout.ENV_FILE, layout.OLLAMA_ENV_FILE}
    contents = dict(_contents(machine, {*paths, layout.DROP_IN, layout.PAUSE}))
    facts = HostFacts(
        shipped=brought,
        version=specd.__version__,
        record=record,
        contents=contents,
        folders=_folders(machine),
        command=_command(machine.at(layout.COMMAND)),
        own_settings=_from_file(machine, layout.ENV_FILE),
        has_user=_has_user(layout.USER),
        has_selinux=machine.at("/sys/fs/selinux/enforce").exists(),
        runs_installed=Path(sys.prefix) == machine.at(layout.ENVIRONMENT),
        read_only=tuple(_read_only(machine)),
        free_bytes=shutil.disk_usage(_nearest_existing(machine.at(layout.ENVIRONMENT))).free,
    )
    if not has_systemd:
        return _without_systemd(facts, machine, NO_SYSTEMD)
    try:
        return _with_units(facts, machine)
    except CommandFailed as error:
        if not dry_run:
            raise
        return _without_systemd(facts, machine, str(error))


def _with_units(facts: HostFacts, machine: HostSystem) -> HostFacts:
    """Add what systemd knows about the units.  Raises CommandFailed."""
    ollama = machine.unit(layout.OLLAMA)
    ollama_settings, unread = _ollama_environment(machine) if ollama.is_there else ({}, "")
    return replace(
        facts,
        service=machine.unit(layout.SERVICE),
        socket=machine.unit(layout.SOCKET),
        ollama=ollama,
        environment=parse_environment(machine.value(layout.SERVICE, "Environment"))
        | _from_files(machine),
        ollama_environment=ollama_settings,
        unread=unread,
    )


def _without_systemd(facts: HostFacts, machine: HostSystem, why: str) -> HostFacts:
    """Add what the unit files say, without systemd."""
    service, socket, ollama = (
        UnitState(name, is_there=_has_unit(machine, name), is_known=False)
        for name in (layout.SERVICE, layout.SOCKET, layout.OLLAMA)
    )
    return replace(
        facts,
        service=service,
        socket=socket,
        ollama=ollama,
        environment=_from_files(machine),
        unseen=why,
    )


def _has_unit(machine: HostSystem, name: str) -> bool:
    return any(machine.at(f"{folder}/{name}").exists() for folder in UNIT_FOLDERS)


def _ollama_environment(machine: HostSystem) -> tuple[dict[str, str], str]:
    """Return Ollama's variables, and why some are missing, "" if none are.

    Only a migration needs them, and it fails without them.
    """
    try:
        from_units, from_files = read_environment(machine)
    except CommandFailed:
        raise
    except InstallError as error:
        return {}, str(error)
    return {**from_units, **from_files}, ""


def _from_files(machine: HostSystem) -> dict[str, str]:
    """Return the variables of specd.service's files, which override the units' Environment=."""
    return _from_file(machine, layout.OLLAMA_ENV_FILE) | _from_file(machine, layout.ENV_FILE)


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
    is_unseen = not holder.pid and any(
        unit.may_run
        for unit in (facts.service, facts.ollama)
        if unit.name in {layout.SERVICE, *replaced}
    )
    return None if is_ours or is_unseen else holder


def _contents(machine: HostSystem, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for path in paths:
        try:
            yield path, machine.at(path).read_bytes()
        except FileNotFoundError:
            continue
        except PermissionError:  # a dry run without root
            yield path, b""


def _folders(machine: HostSystem) -> frozenset[str]:
    places = (
        layout.ENVIRONMENT,
        layout.STAGED,
        layout.FORMER,
        layout.STATE,
        layout.CONFIG,
        *(f"{layout.UNITS}/{unit}.d" for unit in (layout.SERVICE, layout.SOCKET, layout.OLLAMA)),
    )
    return frozenset(place for place in places if machine.at(place).is_dir())


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
