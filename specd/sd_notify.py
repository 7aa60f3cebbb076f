"""What systemd is told about the daemon, over the socket it names (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(*lines: str) -> bool:
    """Send `READY=1`, `STOPPING=1`, `STATUS=...`; False where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket: no file, and a zero in front
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            sock.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("systemd cannot be notified: %s", error)
        return False
    return True
