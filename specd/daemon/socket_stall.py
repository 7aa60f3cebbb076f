"""Detects dead and stalled clients with the kernel's TCP state."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from typing import Final

#: `struct tcp_info` (linux/tcp.h) up to tcpi_bytes_acked.
_TCP_INFO_BYTES, _BYTES_ACKED = 128, slice(120, 128)
#: TCP keepalive, which detects a client that vanished (seconds).
_KEEPALIVE_IDLE_S: Final = 60
_KEEPALIVE_INTERVAL_S: Final = 15


class SocketStall:
    """The time since a client last acknowledged data that waits to be sent."""

    __slots__ = ("_n_acknowledged", "_since", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._n_acknowledged = 0
        self._since = math.inf

    def stalled_s(self, now: float) -> float:
        """Return the seconds without progress since the first check; −inf if nothing waits.

        now: the event loop's time in seconds.
        """
        if not self._transport.get_write_buffer_size():
            self._since = math.inf
            return -math.inf
        n_acknowledged = _n_acknowledged(self._transport)
        if n_acknowledged != self._n_acknowledged or self._since == math.inf:
            self._n_acknowledged, self._since = n_acknowledged, now
        return now - self._since


def enable_keepalive(sock: socket.socket | None) -> None:
    """Set the intervals of TCP keepalive; aiohttp has already set SO_KEEPALIVE."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, seconds in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


def _n_acknowledged(transport: asyncio.Transport) -> int:
    """Return a number that grows with every byte that the client acknowledges.

    TCP_USER_TIMEOUT does not fit: it also ends connections whose window opens slowly.
    """
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)
    except (OSError, AttributeError):  # a unix socket; another system
        return -transport.get_write_buffer_size()
