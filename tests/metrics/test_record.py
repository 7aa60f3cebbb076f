"""The log line of a request at its end."""

from __future__ import annotations

import json
import logging
import re

import pytest

from specd import core
from specd.metrics import (
    RequestRecord,
    current_record,
    current_request_id,
    log_request,
    record_context,
    request_id,
)
from specd.metrics.request_line import FIELDS, Value, logfmt, request_fields
from tests.metrics.test_metrics import DONE, Counted


@pytest.mark.parametrize("sent", ["a", "A-b_c.9", "f" * 64])
def test_a_client_s_own_id_is_kept(sent: str) -> None:
    assert request_id(sent) == sent


@pytest.mark.parametrize("sent", ["", "f" * 65, "a b", "a\nb", 'a"', "é", "a/b", "{}", "a\n"])
def test_a_clients_id_that_could_break_a_log_line_is_replaced(sent: str) -> None:
    made = {request_id(sent) for _ in range(100)}
    assert len(made) == 100
    assert all(request_id(one) == one and len(one) == 20 for one in made)


def test_code_can_read_the_current_request() -> None:
    record = RequestRecord()
    assert (current_record() is record, current_request_id()) == (False, "")
    with record_context(record):
        assert (current_record() is record, current_request_id()) == (True, record.id)
    assert current_request_id() == ""


def fields(record: RequestRecord) -> dict[str, object]:
    """Return the fields of the log line; assert that they are declared and in order."""
    found: dict[str, object] = dict(request_fields(record))
    assert list(found) == [name for name in FIELDS if name in found]
    return found


def test_the_line_of_an_answer() -> None:
    collector = Counted()
    record = collector.answer()
    record.key = "3f2a81c0"
    collector.metrics.end(record)
    assert fields(record) == {
        "request_id": "req_1",
        "dialect": "ollama",
        "method": "POST",
        "route": "/api/chat",
        "status": 200,
        "client": "::1",
        "key": "3f2a81c0",
        "model": "m:latest",
        "drafter": "tiny:latest",
        "prompt_tokens": 50,
        "cached_tokens": 20,
        "generated_tokens": 16,
        "drafted": 8,
        "accepted": 6,
        "acceptance": 0.75,
        "speculation": "active",
        "tokens_per_s": 4.0,
        "queue_ms": 1000.0,
        "load_ms": 5000.0,
        "ttft_ms": 8000.0,
        "finish": "length",
        "total_ms": 11_000.0,
    }


def test_the_line_of_an_answer_without_drafts_has_the_reason() -> None:
    collector = Counted()
    stats = core.SpeculationStats(
        state=core.SpeculationState.PARKED, reason="does_not_pay", speedup=0.98765
    )
    record = collector.answer(
        done=core.Done(reason=core.StopReason.STOP, usage=core.Usage(), speculation=stats)
    )
    collector.metrics.end(record)
    said = fields(record)
    assert (said["speculation"], said["reason"], said["gain"]) == ("parked", "does_not_pay", 0.988)
    assert not said.keys() & {"acceptance", "drafter", "tokens_per_s"}


def test_the_line_of_a_request_that_only_waited() -> None:
    collector = Counted()
    record = collector.begin(route="/api/generate")
    record.model, record.status, record.error = "m:latest", 500, "LoadFailed"
    record.add_wait(4.0, 3.0)
    collector.now += 5.0
    collector.metrics.end(record)
    said = fields(record)
    assert (said["queue_ms"], said["load_ms"], said["total_ms"]) == (1000.0, 3000.0, 5000.0)
    assert (said["status"], said["error"], said["model"]) == (500, "LoadFailed", "m:latest")
    assert "finish" not in said


@pytest.mark.parametrize(
    "fault,finish",
    [({"left": True}, "abort"), ({"error": "EngineCrashed"}, "error"), ({}, "error")],
)
def test_the_line_of_an_incomplete_answer(fault: dict[str, object], finish: str) -> None:
    collector = Counted()
    record = collector.answer(done=None)
    for name, value in fault.items():
        setattr(record, name, value)
    collector.metrics.end(record)
    said = fields(record)
    assert (said["finish"], said["generated_tokens"]) == (finish, 4)
    assert (said["prompt_tokens"], said["cached_tokens"], said["queue_ms"]) == (50, 20, 1000.0)
    assert "drafted" not in said


@pytest.mark.parametrize(
    "changes,level",
    [
        ({}, logging.INFO),
        ({"status": 404}, logging.INFO),
        ({"status": 400, "error": "InvalidOption", "done": None}, logging.INFO),
        ({"status": 501, "error": "EmbeddingsUnsupported", "is_generation": False}, logging.INFO),
        ({"status": 500, "error": "EmbeddingsUnsupported", "is_generation": False}, logging.INFO),
        ({"status": 503}, logging.WARNING),
        ({"error": "EngineCrashed", "done": None}, logging.WARNING),
        ({"route": "/health"}, logging.DEBUG),
        ({"route": "/ready", "status": 503}, logging.DEBUG),
        ({"route": "/metrics"}, logging.DEBUG),
        ({"route": "/v1/health"}, logging.DEBUG),
    ],
)
def test_the_level_of_a_line(
    changes: dict[str, object], level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "specd")
    record = Counted().answer(done=DONE)
    for name, value in changes.items():
        setattr(record, name, value)
    log_request(record)
    [line] = caplog.records
    assert (line.levelno, line.name) == (level, "specd.requests")


def test_a_line_stays_one_line_and_can_be_parsed() -> None:
    values: dict[str, Value] = {
        "plain": "m:latest",
        "number": 1.5,
        "blank": "a b",
        "quote": 'a"b',
        "equals": "a=b",
        "break": "a\nrequest request_id=forged",
        "other": "é\x1b[2J\x85",
        "backslash": "a\\b",
    }
    line = logfmt(values)
    assert line.isascii()
    assert line.isprintable()
    read = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)(?: |$)', line)
    assert {name: json.loads(said) if said.startswith('"') else said for name, said in read} == {
        name: str(value) for name, value in values.items()
    }
