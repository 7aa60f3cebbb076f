"""The tables and figures of list, ps and show."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from specd.cli import list_, ps
from specd.cli.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_expiry,
    format_past,
    table_lines,
)
from specd.cli.stop import unload
from specd.cli.sync_client import DaemonRefused, SyncClient
from tests.cli.fake_daemon import FakeDaemon

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4


def recording_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "seconds,words",
    [
        (0.2, "less than a second"),
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "about a minute"),
        (150, "2 minutes"),
        (3600, "about an hour"),
        (47 * 3600, "47 hours"),
        (3 * 86400, "3 days"),
        (15 * 86400, "2 weeks"),
        (90 * 86400, "3 months"),
        (800 * 86400, "2 years"),
    ],
)
def test_durations_use_the_largest_exact_unit(seconds: float, words: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == words


def test_timestamps_are_formatted_as_in_ollama() -> None:
    assert format_past("2026-11-21T10:00:00.123456789Z", NOW) == "2 hours ago"
    assert format_past("", NOW) == ""
    assert format_expiry("2026-11-21T13:04:30+01:00", NOW) == "4 minutes from now"
    assert format_expiry("2026-11-21T11:59:59Z", NOW) == "Stopping..."
    assert format_expiry("2318-01-01T00:00:00Z", NOW) == "Forever"


def test_sizes_have_ollamas_digits() -> None:
    sizes = [999, 1000, 1_300_000_000, 9_990_000, 13_800_000_000, 2 * 10**15]
    assert [format_bytes(n) for n in sizes] == [
        "999 B",
        "1 KB",
        "1.3 GB",
        "10.0 MB",
        "13 GB",
        "2000 TB",
    ]
    counts = [7, 19_400, 137 * 10**6, 137_250_000, 8 * 10**9, 1_240_000_000]
    assert [format_count(n) for n in counts] == ["7", "19K", "137M", "137.25M", "8B", "1.2B"]


async def test_list_has_a_line_per_model() -> None:
    model = {
        "name": "llama3.2:1b",
        "digest": DIGEST,
        "size": 1_300_000_000,
        "modified_at": "2020-01-01T00:00:00Z",
    }
    async with FakeDaemon({"/api/tags": {"models": [model]}}).serve() as url:
        header, line = await asyncio.to_thread(list_.lines, SyncClient(url), 200)
    assert header.split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert line.startswith("llama3.2:1b    0123456789ab    1.3 GB")
    assert line.rstrip().endswith("years ago")


async def test_list_and_ps_filter_by_prefix() -> None:
    facts = {"digest": DIGEST, "size": 1, "modified_at": "", "expires_at": "", "size_vram": 1}
    models = [{**facts, "name": name} for name in ("Ab:1", "b:1")]
    daemon = FakeDaemon({"/api/tags": {"models": models}, "/api/ps": {"models": models}})
    async with daemon.serve() as url:
        console = recording_console()
        await asyncio.to_thread(ps.print_models, SyncClient(url), console, "aB")
        listed = await asyncio.to_thread(list_.lines, SyncClient(url), 200, "aB")
    for lines in (text_of(console).splitlines(), listed):
        assert [line.split()[0] for line in lines] == ["NAME", "Ab:1"]


def test_a_narrow_terminal_gets_narrower_gaps() -> None:
    rows = [("NAME", "ID"), ("a" * 8, "12")]
    assert table_lines(rows, 12) == ["NAME      ID", "aaaaaaaa  12"]
    assert table_lines([("NAME", "ID"), ("b" * 20, "12")], 12)[-1] == "b" * 20 + "  12"


async def test_stop_unloads_a_model_and_reports_a_missing_one() -> None:
    answers = {"/api/generate": {"done": True}}
    daemon = FakeDaemon(answers)
    async with daemon.serve() as url:
        await asyncio.to_thread(unload, SyncClient(url), "m")
    assert daemon.asked == [("/api/generate", {"model": "m", "keep_alive": 0, "stream": False})]
    refused = FakeDaemon({"/api/generate": {"error": "no"}}, {"/api/generate": 404})
    async with refused.serve() as url:
        with pytest.raises(DaemonRefused, match='couldn\'t find model "m" to stop'):
            await asyncio.to_thread(unload, SyncClient(url), "m")
