"""Read from the kernel what a running daemon opens and sends.

Nothing here asks the daemon: the sockets and files of the daemon and its engines are sampled from
the system while an answer runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from specd.errors import SpecdError
from specd.port_owner import find_listener
from specd.settings import HostAddress


class ProcessHidden(SpecdError):
    """There is no such process, or this user may not inspect it."""


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """An internet socket of the process `role`; remote "" if it listens.

    inbound: a client's connection to a port on which the daemon listens.
    """

    role: str
    local: str
    remote: str = ""
    inbound: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A process of the daemon, with its peak resident bytes."""

    role: str
    pid: int
    peak_bytes: int


@dataclass(slots=True)
class ProcessAudit:
    """The sum of all samples of a daemon and its engines."""

    daemon: int
    n_samples: int = 0
    connections: set[Connection] = field(default_factory=set)
    written: set[Path] = field(default_factory=set)  # regular files, open for writing
    peaks: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, address: HostAddress) -> ProcessAudit:
        """Return an audit of the daemon at this address.  Raises ProcessHidden."""
        holder = find_listener(address)
        if holder is None:
            raise ProcessHidden(f"cannot find the process that listens on {address.url}; try sudo")
        return cls(holder.pid)

    def sample(self) -> None:
        """Take one sample.  Raises ProcessHidden if the daemon is gone or hidden."""
        try:
            daemon = psutil.Process(self.daemon)
            family = [daemon, *daemon.children(recursive=True)]
            inet = daemon.net_connections("inet")
            listening = {c.laddr.port for c in inet if c.status == psutil.CONN_LISTEN}
        except psutil.Error as error:
            raise ProcessHidden(f"cannot inspect process {self.daemon}: {error}") from error
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # the engine has just ended
                self._add(process, _role(process, daemon), listening)
        self.n_samples += 1

    def outbound(self) -> list[Connection]:
        """Return the connections that the daemon or an engine opened."""
        return sorted(c for c in self.connections if c.remote and not c.inbound)

    def members(self) -> list[Member]:
        return sorted(Member(role, pid, peak) for (role, pid), peak in self.peaks.items())

    def _add(self, process: psutil.Process, role: str, listening: set[int]) -> None:
        try:
            self.connections.update(_connections(process, role, listening))
            files = process.open_files()
        except psutil.AccessDenied as error:
            raise ProcessHidden(
                f"process {process.pid} belongs to another user: try sudo"
            ) from error
        self.written.update(Path(f.path) for f in files if getattr(f, "mode", "r") != "r")
        key = role, process.pid
        self.peaks[key] = max(self.peaks.get(key, 0), process.memory_info().rss)


def _connections(process: psutil.Process, role: str, listening: set[int]) -> Iterator[Connection]:
    for found in process.net_connections("inet"):
        remote = _address(*found.raddr) if list(found.raddr) else ""
        yield Connection(
            role=role,
            # A client's port differs for every connection.
            local=_address(found.laddr.ip, found.laddr.port) if not remote else "",
            remote=remote.rpartition(":")[0] if found.laddr.port in listening else remote,
            inbound=bool(remote) and found.laddr.port in listening,
        )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _role(process: psutil.Process, daemon: psutil.Process) -> str:
    """Return "daemon", "engine" or "templates"."""
    if process.pid == daemon.pid:
        return "daemon"
    modules = {"specd.engine": "engine", "specd.prompt": "templates"}
    return next((modules[word] for word in process.cmdline() if word in modules), "other process")
