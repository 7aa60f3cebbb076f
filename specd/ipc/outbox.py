"""The engine's messages on their way out: those of a step leave together, and nobody waits.

The thread that flushes writes to the socket itself: to wake another one for each token would take
a core from the pass that begins.  A thread of the outbox writes only what the socket has no room
for.
"""

from __future__ import annotations

import socket
import threading

from specd.ipc import codec
from specd.ipc.messages import ToDaemon


class Outbox:
    """Any thread may send; messages leave in the order in which they were put.

    Once the other end is closed all that is put is dropped: who receives there hears of it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._frames: list[bytes] = []
        self._is_full = False  # the socket: the thread writes all there is
        self._is_closed = False
        self._filled = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._write_rest, name="writer", daemon=True)
        self._thread.start()

    def put(self, message: ToDaemon) -> None:
        """Keep the message until the next flush."""
        frame = codec.encode(message)
        with self._lock:
            self._frames.append(frame)

    def send(self, message: ToDaemon) -> None:
        """Let the message leave at once, behind those that were put before."""
        self.put(message)
        self.flush()

    def flush(self) -> None:
        """Write all that was put, or as much as the socket has room for; the thread the rest."""
        if not self._frames:
            return
        with self._lock:
            if self._is_full:
                return
            frames = self._taken()
            rest = frames[self._write_now(frames) :]
            if rest:
                self._frames.append(rest)
                self._is_full = True
                self._filled.release()

    def drain(self) -> None:
        """Return when all that was put has left; nothing may be put afterwards."""
        self.flush()
        self._is_closed = True
        self._filled.release()
        self._thread.join()

    def _taken(self) -> bytes:
        """Take what was put; the lock is held."""
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames

    def _write_now(self, frames: bytes) -> int:
        """Return how many bytes the socket has taken."""
        try:
            return self._sock.send(frames, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frames)

    def _write_rest(self) -> None:
        while not self._is_closed:
            self._filled.acquire()
            while frames := self._rest():
                try:
                    self._sock.sendall(frames)
                except OSError:
                    continue

    def _rest(self) -> bytes:
        """Take what the socket had no room for; b"": there is room again."""
        with self._lock:
            frames = self._taken()
            self._is_full = bool(frames)
            return frames
