"""Queue of messages to the daemon: those of a step are sent together, and sending never blocks.

The thread that flushes writes to the socket itself, because waking another thread for each token
would take a core from the next pass.  The outbox's own thread only writes what does not fit into
the socket's buffer.
"""

from __future__ import annotations

import socket
import threading

from specd.ipc import codec
from specd.ipc.messages import ToDaemon


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
