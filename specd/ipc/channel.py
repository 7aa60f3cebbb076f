"""The two ends of a socketpair: blocking for the engine's threads, asyncio for the daemon.

The engine's stdout is not used, because native code prints there when it crashes.

The engine's messages of a step are sent together, and sending never blocks.  The thread that
flushes writes to the socket itself, because waking another thread for each token would take a core
from the next pass.  The outbox's own thread only writes what does not fit into the socket's buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable

from specd.ipc import codec
from specd.ipc.messages import ToDaemon, ToEngine

#: Most bytes of a long message that one call reads.
_READ_BYTES = 1 << 18


class Outbox:
    """A queue of messages for one socket.  Any thread may send; the order is kept.

    Once the other end is closed, messages are dropped.  The receiving thread detects the end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._frames: list[bytes] = []
        self._is_full = False  # the socket's buffer: then only the outbox's thread writes
        self._is_closed = False
        self._filled = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._write_rest, name="writer", daemon=True)
        self._thread.start()

    def put(self, message: ToDaemon) -> None:
        """Queue the message until the next flush."""
        frame = codec.encode(message)
        with self._lock:
            self._frames.append(frame)

    def send(self, message: ToDaemon) -> None:
        """Send the message at once, after those in the queue."""
        self.put(message)
        self.flush()

    def flush(self) -> None:
        """Write as much of the queue as the socket takes; the outbox's thread writes the rest."""
        if not self._frames:
            return
        with self._lock:
            if self._is_full:
                return
            frames = self._take_frames()
            rest = frames[self._write_now(frames) :]
            if rest:
                self._frames.append(rest)
                self._is_full = True
                self._filled.release()

    def drain(self) -> None:
        """Return once the queue is sent or dropped.  Do not call `put` afterwards."""
        self.flush()
        self._is_closed = True
        self._filled.release()
        self._thread.join()

    def _take_frames(self) -> bytes:
        """Return and clear the queue.  The caller holds the lock."""
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames

    def _write_now(self, frames: bytes) -> int:
        """Return how many bytes the socket took."""
        try:
            return self._sock.send(frames, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frames)

    def _write_rest(self) -> None:
        while True:
            self._filled.acquire()
            # Read before the loop, so that everything put before the end is written.
            is_last = self._is_closed
            while frames := self._unsent():
                try:
                    self._sock.sendall(frames)
                except OSError:
                    continue
            if is_last:
                return

    def _unsent(self) -> bytes:
        """Return and clear the unsent frames; b"" if none are left."""
        with self._lock:
            frames = self._take_frames()
            self._is_full = bool(frames)
            return frames


class EngineChannel:
    """The engine's end.  One thread receives, any thread sends.

    outbox: sends several messages together.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        # A thread that blocks in recv() is also woken whenever the daemon reads from the socket.
        # One that polls for input is not.
        self._input = select.poll()
        self._input.register(sock, select.POLLIN)
        self.outbox = Outbox(sock)

    def receive(self) -> ToEngine | None:
        """Return the next message; None once the daemon's end is closed.

        Raises BadFrame for an invalid message.
        """
        try:
            header = self._read(codec.HEADER.size)
            body = self._read(codec.body_length(header))
        except (OSError, EOFError):
            return None
        return codec.decode_to_engine(body)

    def _read(self, n: int) -> bytearray:
        """Read exactly n bytes.  Raises EOFError if the other end closes earlier."""
        received = bytearray()
        while len(received) < n:
            self._input.poll()
            piece = self._sock.recv(min(n - len(received), _READ_BYTES))
            if not piece:
                raise EOFError
            received += piece
        return received

    def send(self, message: ToDaemon) -> None:
        """Send without waiting, even while the daemon does not read."""
        self.outbox.send(message)

    def close(self) -> None:
        """Close the channel.  A thread that is blocked in `receive` gets None."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._sock.shutdown(socket.SHUT_RDWR)
        self.outbox.drain()
        self._sock.close()


class DaemonChannel(asyncio.Protocol):
    """The daemon's end.  One task receives or listens, any task sends.

    It is a protocol, not a stream: the read that completes a message calls the listener at once.
    A task that waits on a stream would run one turn of the event loop later.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._messages: deque[ToDaemon] = deque()
        self._deliver: Callable[[ToDaemon], None] = self._messages.append
        self._has_moved = asyncio.Event()  # a message or the end has arrived
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def from_socket(cls, sock: socket.socket) -> DaemonChannel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(cls, sock=sock)
        return channel

    async def send(self, message: ToEngine) -> None:
        """Send a message, waiting while the socket's buffer is full.

        Raises OSError once the engine is gone, and BadFrame for a message that is too large.
        """
        frame = codec.encode(message)
        if not self._transport.is_closing():
            self._transport.write(frame)
            await self._has_room.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the engine has closed its end")

    def send_nowait(self, message: ToEngine) -> None:
        """Send without waiting, for small messages, also while a task is being cancelled."""
        if not self._transport.is_closing():
            self._transport.write(codec.encode(message))

    async def receive(self) -> ToDaemon | None:
        """Return the next message; None once the engine's end is closed, even within a frame.

        Raises BadFrame for an invalid message.
        """
        while not self._messages:
            if self._ended.done():
                self._ended.result()
                return None
            self._has_moved.clear()
            await self._has_moved.wait()
        return self._messages.popleft()

    async def listen(self, deliver: Callable[[ToDaemon], None]) -> None:
        """Pass each message to `deliver` until the engine's end is closed.

        Raises BadFrame for an invalid message.
        """
        while self._messages:
            deliver(self._messages.popleft())
        self._deliver = deliver
        try:
            await asyncio.shield(self._ended)
        finally:
            self._deliver = self._messages.append

    async def close(self) -> None:
        self._transport.close()
        await asyncio.wait({self._ended})

    # ------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self._deliver_all()
        except Exception as error:  # noqa: BLE001 - `receive` or `listen` raises it
            self._end(error)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._end(None)

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def _deliver_all(self) -> None:
        """Deliver every complete message of the buffer."""
        buffer, at = self._buffer, 0
        while len(buffer) >= at + codec.HEADER.size:
            begin = at + codec.HEADER.size
            end = begin + codec.body_length(buffer[at:begin])
            if len(buffer) < end:
                break
            self._deliver(codec.decode_to_daemon(buffer[begin:end]))
            at = end
        del buffer[:at]
        self._has_moved.set()

    def _end(self, error: Exception | None) -> None:
        if not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
                self._ended.exception()  # asyncio logs exceptions that are never retrieved
        self._has_moved.set()
        self._has_room.set()
