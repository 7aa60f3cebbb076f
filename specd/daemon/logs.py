"""The daemon's log on stderr: text or JSON, with priorities for systemd's journal."""

from __future__ import annotations

import copy
import datetime as dt
import json
import logging
import os
import queue
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from typing import TextIO

from aiohttp import BadContentDispositionHeader, BadContentDispositionParam

from specd.metrics import current_request_id


@contextmanager
def logging_to_stderr(debug: int, log_format: str = "text") -> Iterator[None]:
    """Log to stderr from a separate thread, so that a slow terminal never blocks the event loop.

    debug: OLLAMA_DEBUG; 2 adds the libraries' messages.  log_format: SPECD_LOG_FORMAT.
    """
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(make_formatter(log_format, journal=is_journal(sys.stderr, os.environ)))
    listener = QueueListener(lines, writer)
    root, specd_logger = logging.getLogger(), logging.getLogger("specd")
    previous = root.handlers, root.level, specd_logger.level
    root.handlers = [_RequestQueueHandler(lines)]
    set_level(debug)
    listener.start()
    try:
        with warnings.catch_warnings():
            # The client gets an error for its form; the warning would quote the form in the log.
            for warning_class in (BadContentDispositionHeader, BadContentDispositionParam):
                warnings.simplefilter("ignore", warning_class)
            yield
    finally:
        listener.stop()
        root.handlers = previous[0]
        root.setLevel(previous[1])
        specd_logger.setLevel(previous[2])


def set_level(debug: int) -> None:
    """Set the log levels.  debug: as in `logging_to_stderr`."""
    logging.getLogger().setLevel(logging.DEBUG if debug > 1 else logging.WARNING)
    logging.getLogger("specd").setLevel(logging.DEBUG if debug else logging.INFO)


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether the stream is the one that systemd names in JOURNAL_STREAM."""
    try:
        stream_stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{stream_stat.st_dev}:{stream_stat.st_ino}"


def make_formatter(log_format: str, *, journal: bool) -> logging.Formatter:
    """Return the formatter for a format of SPECD_LOG_FORMAT.

    journal: omit the time, and begin each line with its priority.
    """
    if log_format == "json":
        lines: logging.Formatter = _JsonFormatter()
    else:
        lines = _TextFormatter("" if journal else "%(asctime)s %(levelname)s ")
    return _JournalFormatter(lines) if journal else lines


class _RequestQueueHandler(QueueHandler):
    """A handler that queues records for the writing thread, with the id of the request."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        ready = copy.copy(record)
        ready.msg, ready.args = record.getMessage(), None
        ready.__dict__.setdefault("request_id", current_request_id())
        if ready.exc_info:
            ready.exc_text = logging.Formatter().formatException(ready.exc_info)
            ready.exc_info = None
        return ready


class _TextFormatter(logging.Formatter):
    def __init__(self, prefix: str) -> None:
        super().__init__(prefix + "%(name)s: %(about)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "")
        # A request's summary line already begins with its id.
        record.about = f"[{request_id}] " if request_id and not hasattr(record, "fields") else ""
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line; a request's fields are top-level keys."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, object] = getattr(record, "fields", {})
        output: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": "request" if fields else record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            output["request_id"] = request_id
        if record.exc_text:
            output["exception"] = record.exc_text
        return json.dumps({**output, **fields}, ensure_ascii=False)


class _JournalFormatter(logging.Formatter):
    """A formatter that puts a priority like `<4>` before each line (sd-daemon(3)).

    Otherwise `journalctl -p` would only find the first line of several.
    """

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        output = self._lines.format(record)
        return "\n".join(prefix + line for line in output.split("\n"))


def _priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of `logging`."""
    priorities = (logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6)
    return next((number for min_level, number in priorities if level >= min_level), 7)
