"""A queue of messages to the daemon: those of a step are sent together, and sending never blocks.

The thread that flushes writes to the socket itself: to wake another thread for each token would
take a core from the next pass.  The outbox's own thread writes only what does not fit into the
socket's buffer.
"""

from __future__ import annotations

import socket
import threading

from specd.ipc import codec
from specd.ipc.messages import ToDaemon


class Outbox:
    """Any thread may send; messages are sent in the order in which they were put.

    Once the other end is closed, messages are dropped.  The receiving thread notices the end.
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
        """Send the message at once, after those that were put before."""
        self.put(message)
        self.flush()

    def flush(self) -> None:
        """Write what was put, as far as there is room; the outbox's thread writes the rest."""
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
        """Return once all that was put is sent or dropped; nothing may be put afterwards."""
        self.flush()
        self._is_closed = True
        self._filled.release()
        self._thread.join()

    def _take_frames(self) -> bytes:
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
        while True:
            self._filled.acquire()
            # Asked before the rest: what was put before the end is in it.
            is_last = self._is_closed
            while frames := self._unsent():
                try:
                    self._sock.sendall(frames)
                except OSError:
                    continue
            if is_last:
                return

    def _unsent(self) -> bytes:
        """Take what the socket had no room for; b"" if nothing is left."""
        with self._lock:
            frames = self._take_frames()
            self._is_full = bool(frames)
            return frames
