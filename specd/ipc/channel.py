"""The two ends of one socketpair: blocking for the engine's threads, asyncio for the daemon.

The child's stdout is never a channel: native code prints there when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

from specd.ipc import codec
from specd.ipc.messages import ToDaemon, ToEngine


class EngineChannel:
    """The engine's end.  One thread receives, any thread sends."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()

    def receive(self) -> ToEngine | None:
        """The next message; None once the daemon's end is closed.  BadFrame on damage."""
        try:
            header = self._reader.read(codec.HEADER.size)
            if len(header) < codec.HEADER.size:
                return None
            length = codec.body_length(header)
            body = self._reader.read(length)
        except ConnectionError:
            return None
        return codec.decode_to_engine(body) if len(body) == length else None

    def send(self, message: ToDaemon) -> None:
        """Blocks while the daemon does not read; OSError once it is gone."""
        frame = codec.encode(message)
        with self._sending:
            self._sock.sendall(frame)

    def close(self) -> None:
        """Wakes a thread that is blocked in `receive`, which then returns None."""
        with contextlib.suppress(OSError):  # the other end went first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class DaemonChannel:
    """The daemon's end.  One task receives, any task sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> DaemonChannel:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer)

    async def send(self, message: ToEngine) -> None:
        """OSError once the engine is gone; BadFrame, and nothing sent, for a message too large."""
        self._writer.write(codec.encode(message))
        await self._writer.drain()

    def post(self, message: ToEngine) -> None:
        """Send without waiting: for small words that must also go out while a task is cancelled."""
        if not self._writer.is_closing():
            self._writer.write(codec.encode(message))

    async def receive(self) -> ToDaemon | None:
        """The next message; None once the engine's end is closed, even in mid-frame."""
        try:
            header = await self._reader.readexactly(codec.HEADER.size)
            body = await self._reader.readexactly(codec.body_length(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return codec.decode_to_daemon(body)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # the engine went first
            await self._writer.wait_closed()
