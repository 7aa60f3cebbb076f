"""Socket activation and notifications of systemd: sd_listen_fds(3), sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

_FIRST_FD = 3
_VARIABLES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Systemd:
    """The connection to systemd; without systemd all fields are empty.

    watchdog_s: seconds without a `WATCHDOG=1` after which systemd kills the daemon; None is never.
    sockets: listening sockets that systemd passed on; the caller closes them.
    """

    notify_address: str = ""
    watchdog_s: float | None = None
    sockets: tuple[socket.socket, ...] = ()
    _logged_errors: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def from_environment(cls, variables: MutableMapping[str, str] = os.environ) -> Systemd:
        """Read and remove systemd's variables; make the sockets not inheritable.

        Call it once, before any child process starts.  Raises OSError if a file descriptor is not
        a socket.
        """
        values = {name: variables.pop(name, "") for name in _VARIABLES}
        return cls(
            notify_address=values["NOTIFY_SOCKET"],
            watchdog_s=_watchdog_s(values),
            sockets=_sockets(values),
        )

    def notify(self, *lines: str, timeout_s: float = 0.0) -> bool:
        """Send lines like `READY=1` or `STATUS=...`; return whether they were sent.

        timeout_s: how long to wait while systemd's queue is full; then the lines are dropped.
        Each error is logged once, because callers may retry every second.
        """
        address = self.notify_address
        if not address.startswith(("/", "@")):
            return False
        if address.startswith("@"):
            address = "\0" + address[1:]  # an abstract socket begins with a zero byte
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(timeout_s)
                sock.connect(address)
                sock.sendall("\n".join(lines).encode())
        except (BlockingIOError, TimeoutError):
            log.debug("systemd's notification queue is full: dropped %s", lines)
            return False
        except OSError as error:
            if str(error) not in self._logged_errors:
                self._logged_errors.add(str(error))
                log.warning("cannot notify systemd: %s", error)
            return False
        self._logged_errors.clear()
        return True


def _is_own_pid(pid: str) -> bool:
    return pid == str(os.getpid())


def _watchdog_s(values: dict[str, str]) -> float | None:
    pid, microseconds = values["WATCHDOG_PID"], values["WATCHDOG_USEC"]
    if not microseconds.isdecimal() or (pid and not _is_own_pid(pid)):
        return None
    return int(microseconds) / 1e6 or None


def _sockets(values: dict[str, str]) -> tuple[socket.socket, ...]:
    n = values["LISTEN_FDS"]
    if not n.isdecimal() or not _is_own_pid(values["LISTEN_PID"]):
        return ()
    descriptors = range(_FIRST_FD, _FIRST_FD + int(n))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return tuple(socket.socket(fileno=descriptor) for descriptor in descriptors)
