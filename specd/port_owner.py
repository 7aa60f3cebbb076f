"""Find the process that listens on a port, for the error that the port is in use."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from specd.settings import HostAddress, is_loopback

_ALL = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that listens on a port.

    pid: 0 if this user may not see the process; name and unit are then empty.
    unit: "ollama.service", or "ollama.service of user 1000" for a user's service.
    """

    pid: int = 0
    name: str = ""
    unit: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "another program"
        return f"{self.name} (pid {self.pid}{self.unit and ', '}{self.unit})"


def find_port_owner(address: HostAddress) -> PortOwner | None:
    """Return the process that uses the port.

    None if the port is free or cannot be checked: then the daemon reports the failure to listen.
    """
    if not address.port or not _is_in_use(address):
        return None
    return find_listener(address) or PortOwner()


def addresses_overlap(one: HostAddress, other: HostAddress) -> bool:
    """Return whether two programs cannot listen on these two addresses at once."""
    return one.port == other.port != 0 and _hosts_overlap(one.host, other.host)


def find_listener(address: HostAddress) -> PortOwner | None:
    """Return the process that listens on the address; None if there is none, or it is hidden."""
    try:
        return _listener(address)
    except psutil.Error:  # only root may list connections
        return None


def _listener(address: HostAddress) -> PortOwner | None:
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        host, port = connection.laddr
        if connection.pid and port == address.port and _hosts_overlap(host, address.host):
            return _port_owner(connection.pid)
    return None


def _is_in_use(address: HostAddress) -> bool:
    try:
        found = socket.getaddrinfo(
            address.host or None,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except OSError:
        return False
    return any(_is_bound(family, address_tuple) for family, _, _, _, address_tuple in found)


def _is_bound(family: int, address_tuple: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe_socket:
            probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe_socket.bind(address_tuple)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _hosts_overlap(one: str, other: str) -> bool:
    if one == other or one in _ALL or other in _ALL:
        return True
    is_named = "localhost" in {one.lower(), other.lower()}
    return is_named and is_loopback(one) and is_loopback(other)


def _port_owner(pid: int) -> PortOwner:
    try:
        name = psutil.Process(pid).name()
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except (OSError, psutil.Error):
        return PortOwner(pid, "a program", "")
    return PortOwner(pid, _printable(name), _printable(parse_systemd_unit(groups)))


def parse_systemd_unit(groups: str) -> str:
    """Return PortOwner.unit for the text of /proc/PID/cgroup; "" outside of a service."""
    for line in groups.splitlines():
        match line.split(":", 2):
            case [_, "" | "name=systemd", path] if unit := _outermost_unit(path):
                return unit
    return ""


def _outermost_unit(path: str) -> str:
    """Return the outermost service of a cgroup path, which owns containers below it."""
    above, is_users, below = path.partition("/user@")
    if unit := _first_service(above):
        return "" if above.startswith("/user.slice/") else unit
    user, _, own = below.partition(".service/")
    unit = _first_service(own) if is_users else ""
    return unit and f"{unit} of user {user}"


def _first_service(path: str) -> str:
    return next((part for part in path.split("/") if part.endswith(".service")), "")


def _printable(text: str) -> str:
    """Replace unprintable characters: programs choose their names and cgroups freely."""
    return "".join(character if character.isprintable() else "?" for character in text)
