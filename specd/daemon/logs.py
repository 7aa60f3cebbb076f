"""What the daemon says, on stderr."""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener


@contextmanager
def logging_to_stderr(debug: int) -> Iterator[None]:
    """To stderr, written by a thread of its own: a slow terminal never blocks the event loop.

    debug: OLLAMA_DEBUG; 2 adds what the libraries say.
    """
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    listener = QueueListener(lines, writer)
    root = logging.getLogger()
    root.handlers = [QueueHandler(lines)]
    set_level(debug)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


def set_level(debug: int) -> None:
    """debug: as above."""
    logging.getLogger().setLevel(logging.DEBUG if debug > 1 else logging.WARNING)
    logging.getLogger("specd").setLevel(logging.DEBUG if debug else logging.INFO)
