"""The log lines: as text, as JSON, and for the journal."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import BadContentDispositionHeader, BadContentDispositionParam

from specd.daemon.logs import _RequestQueueHandler, is_journal, logging_to_stderr, make_formatter
from specd.metrics import RequestRecord, log_request, record_context

log = logging.getLogger("specd.some.room")


class Writing:
    """Format log records as the writing thread does."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.handler = _RequestQueueHandler(self._lines)

    def written(self, log_format: str, *, journal: bool = False) -> str:
        return make_formatter(log_format, journal=journal).format(self._lines.get_nowait())


@pytest.fixture
def writing() -> Iterator[Writing]:
    found = Writing()
    logger = logging.getLogger("specd")
    logger.addHandler(found.handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(found.handler)
    logger.setLevel(logging.NOTSET)


def fail() -> None:
    try:
        int("oops")
    except ValueError:
        log.exception("it %s", "failed")


def test_a_text_line_has_time_level_and_request_id(writing: Writing) -> None:
    log.info("%d models", 3)
    line = writing.written("text")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO specd.some.room: 3 models", line
    )
    with record_context(RequestRecord(id="r-1")):
        log.warning("slow")
    assert writing.written("text").endswith(" WARNING specd.some.room: [r-1] slow")
    fail()
    first, *_, last = writing.written("text").splitlines()
    assert first.endswith("it failed")
    assert last == "ValueError: invalid literal for int() with base 10: 'oops'"


def test_the_line_of_a_request_has_its_id_once(writing: Writing) -> None:
    record = RequestRecord(id="r-1", route="/api/chat", status=200)
    with record_context(record):
        log_request(record)
    line = writing.written("text")
    assert line.count("r-1") == 1
    assert " INFO specd.requests: request request_id=r-1 route=/api/chat status=200 " in line


def test_a_json_line(writing: Writing) -> None:
    with record_context(RequestRecord(id="r-1")):
        log.info("%d models\nand \u2028 so on", 3)
    text = writing.written("json")
    assert "\n" not in text
    line = json.loads(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "specd.some.room",
        "message": "3 models\nand \u2028 so on",
        "request_id": "r-1",
    }
    fail()
    text = writing.written("json")
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["message"]) == ("error", "it failed")
    assert line["exception"].endswith("ValueError: invalid literal for int() with base 10: 'oops'")
    assert "request_id" not in line


def test_the_json_line_of_a_request_has_numbers(writing: Writing) -> None:
    record = RequestRecord(id="r-1", route="/api/chat", status=200)
    with record_context(record):
        log_request(record)
    line = json.loads(writing.written("json"))
    assert (line["message"], line["request_id"], line["status"]) == ("request", "r-1", 200)
    assert line["total_ms"] == 0.0


@pytest.mark.parametrize(
    "level,priority",
    [
        (logging.DEBUG, 7),
        (logging.INFO, 6),
        (logging.WARNING, 4),
        (logging.ERROR, 3),
        (logging.CRITICAL, 2),
    ],
)
def test_the_journal_gets_priorities_and_no_time(
    writing: Writing, level: int, priority: int
) -> None:
    log.log(level, "so it is")
    assert writing.written("text", journal=True) == f"<{priority}>specd.some.room: so it is"
    log.log(level, "so it is")
    line = writing.written("json", journal=True)
    assert line.startswith(f'<{priority}>{{"time"')
    assert json.loads(line[3:])["message"] == "so it is"


def test_every_line_of_a_traceback_has_its_priority(writing: Writing) -> None:
    fail()
    lines = writing.written("text", journal=True).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("<3>") for line in lines)


def test_the_journal_is_recognized_by_its_stream(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream, (tmp_path / "other").open("w") as other:
        found = os.fstat(stream.fileno())
        said = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_journal(stream, said)
        assert not is_journal(other, said)  # a shell below a service wrote it elsewhere
        assert not is_journal(stream, {})
    assert not is_journal(stream, said)  # closed


def test_all_log_lines_reach_stderr_before_the_exit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    with logging_to_stderr(0, "json"):
        log.info("first")
        log.debug("not said")
        log.warning("last")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["first", "last"]


def test_a_client_s_invalid_form_is_not_logged() -> None:
    """The warning of aiohttp quotes the invalid header, which may be private."""
    with logging_to_stderr(0):
        warnings.warn(BadContentDispositionHeader("secret"), stacklevel=1)
        warnings.warn(BadContentDispositionParam("secret"), stacklevel=1)
    with pytest.raises(BadContentDispositionHeader):
        warnings.warn(BadContentDispositionHeader("as before"), stacklevel=1)
