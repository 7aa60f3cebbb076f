"""What systemd hands to the daemon, and what it is told: sd_notify(3), sd_listen_fds(3)."""

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
    """Without systemd: nobody listens, nothing is watched, no socket is there.

    watchdog_s: after so long without a `WATCHDOG=1` the daemon is ended; None is never.
    sockets: those that it listens on for the daemon; whoever takes them closes them.
    """

    notify_address: str = ""
    watchdog_s: float | None = None
    sockets: tuple[socket.socket, ...] = ()
    _logged_errors: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def from_environment(cls, variables: MutableMapping[str, str] = os.environ) -> Systemd:
        """Once, before any child is started: the variables are gone, the sockets not inherited.

        Raises OSError where a file descriptor is no socket.
        """
        values = {name: variables.pop(name, "") for name in _VARIABLES}
        return cls(
            notify_address=values["NOTIFY_SOCKET"],
            watchdog_s=_watchdog_s(values),
            sockets=_sockets(values),
        )

    def notify(self, *lines: str, timeout_s: float = 0.0) -> bool:
        """Send `READY=1`, `STATUS=...`; False where nobody listens.

        patience_s: how long to wait where systemd is behind with reading; then it is not told.
        Why it cannot be reached is logged once, for it may be tried every second.
        """
        address = self.notify_address
        if not address.startswith(("/", "@")):
            return False
        if address.startswith("@"):
            address = "\0" + address[1:]  # an abstract socket: no file, and a zero in front
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(timeout_s)
                sock.connect(address)
                sock.sendall("\n".join(lines).encode())
        except (BlockingIOError, TimeoutError):
            log.debug("systemd does not listen now: %s is lost", lines)
            return False
        except OSError as error:
            if str(error) not in self._logged_errors:
                self._logged_errors.add(str(error))
                log.warning("systemd cannot be notified: %s", error)
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
