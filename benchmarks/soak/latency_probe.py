"""Request the version ten times a second from a separate process, and print how long it takes.

    python -m benchmarks.soak.latency_probe HOST PORT

Each probe is a new connection.  It prints a line for each: seconds since the epoch, and
milliseconds until the first byte of the answer, or -1 without an answer.  It ends when its stdin is
closed.
"""

from __future__ import annotations

import select
import socket
import sys
import time

EVERY_S = 0.1
_ANSWER_S = 10.0


def probe(address: tuple[str, int]) -> float:
    """Return milliseconds from before the connection to the first byte; -1 without an answer."""
    host, port = address
    ask = f"GET /api/version HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    began = time.perf_counter()
    try:
        with socket.create_connection(address, timeout=_ANSWER_S) as sock:
            sock.sendall(ask.encode())
            first = sock.recv(1)
            took_ms = (time.perf_counter() - began) * 1e3
            while sock.recv(4096):
                pass
    except OSError:
        return -1.0
    return took_ms if first else -1.0


def main(host: str, port: int) -> None:
    due = time.monotonic()
    while True:
        took_ms = probe((host, port))
        print(f"{time.time():.3f} {took_ms:.3f}", flush=True)
        due = max(due + EVERY_S, time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
        if ready:
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
