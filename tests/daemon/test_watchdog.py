"""The notifications to systemd, with a fake socket and a fake clock."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specd.daemon.watchdog import run_watchdog
from specd.sd_notify import Systemd


@dataclass
class Watched:
    """Receive all notifications; `after` advances the time and runs the daemon's task."""

    systemd: socket.socket
    words: str = "listening"
    stuck: list[str] = field(default_factory=list)
    fault: Exception | None = None
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def status(self) -> str:
        return self.words

    def are_stuck(self) -> list[str]:
        if self.fault is not None:
            raise self.fault
        return self.stuck

    def heard(self) -> list[str]:
        lines = []
        while True:
            try:
                lines += self.systemd.recv(1000).decode().splitlines()
            except BlockingIOError:
                return lines

    async def after(self, seconds: float) -> list[str]:
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)
        return self.heard()


@asynccontextmanager
async def watched(
    tmp_path: Path,
    watchdog_s: float | None = 8.0,
    status: Callable[[], str] | None = None,
    status_interval_s: float = 1.0,
) -> AsyncIterator[Watched]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        own = Watched(sock)
        task = asyncio.create_task(
            run_watchdog(
                Systemd(notify_address=sock.getsockname(), watchdog_s=watchdog_s),
                stuck=own.are_stuck,
                status=status or own.status,
                clock=lambda: own.now,
                sleep=own.sleep,
                status_interval_s=status_interval_s,
            )
        )
        yield own
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_pings_come_at_less_than_half_the_limit(tmp_path: Path) -> None:
    async with watched(tmp_path, 8.0) as own:
        await own.after(0)
        for _ in range(3):
            assert await own.after(1.9) == []
            assert await own.after(0.2) == ["WATCHDOG=1"]


async def test_pings_continue_while_the_status_changes(
    tmp_path: Path,
) -> None:
    looks = itertools.count()
    async with watched(tmp_path, 8.0, lambda: f"{next(looks)} answers run") as own:
        await own.after(0)
        heard = [await own.after(1.0) for _ in range(12)]
    n_pings = sum(lines.count("WATCHDOG=1") for lines in heard)
    assert n_pings == 6
    assert all(any(line.startswith("STATUS=") for line in lines) for lines in heard)


@pytest.mark.parametrize(
    "watchdog_s, status_interval_s, pause_s",
    [(8.0, 60.0, 1.0), (8.0, 0.5, 0.5), (None, 60.0, 60.0)],
)
async def test_the_interval_is_short_enough_for_a_ping(
    tmp_path: Path, watchdog_s: float | None, status_interval_s: float, pause_s: float
) -> None:
    """A ping is due after a quarter of the limit, and may be sent one check later."""
    async with watched(tmp_path, watchdog_s, status_interval_s=status_interval_s) as own:
        await own.after(0)
        assert set(own.slept) == {pause_s}


@pytest.mark.parametrize("watchdog_s, n", [(8.0, 1), (None, 0)])
async def test_a_traceback_is_written_when_the_watchdog_kills_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watchdog_s: float | None, n: int
) -> None:
    enabled: list[None] = []
    monkeypatch.setattr(faulthandler, "enable", lambda: enabled.append(None))
    async with watched(tmp_path, watchdog_s) as own:
        await own.after(0)
    assert len(enabled) == n


async def test_without_a_watchdog_there_are_no_pings(tmp_path: Path) -> None:
    async with watched(tmp_path, None) as own:
        assert await own.after(0) == ["STATUS=listening"]
        assert await own.after(1000) == []


async def test_the_status_is_sent_when_it_changes(tmp_path: Path) -> None:
    async with watched(tmp_path) as own:
        assert await own.after(0) == ["STATUS=listening"]
        assert await own.after(0) == []
        own.words = "loaded: m"
        assert await own.after(0) == ["STATUS=loaded: m"]


async def test_an_engine_that_cannot_be_killed_stops_the_pings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path) as own:
        await own.after(0)
        own.stuck = ["qwen3:4b"]
        with caplog.at_level(logging.ERROR):
            assert await own.after(5) == []
            assert await own.after(5) == []
        assert [record.message for record in caplog.records] == [
            "qwen3:4b: the engine makes no step and cannot be killed; withholding watchdog pings"
        ]
        own.stuck = []
        assert await own.after(0) == ["WATCHDOG=1"]


async def test_a_ping_that_was_not_read_is_repeated(tmp_path: Path) -> None:
    async with watched(tmp_path) as own:
        await own.after(0)
        ours = Systemd(notify_address=own.systemd.getsockname())
        while ours.notify("STATUS=x"):
            pass
        own.now += 3
        await asyncio.sleep(0)  # full: the ping is lost
        assert "WATCHDOG=1" not in own.heard()
        assert await own.after(0) == ["WATCHDOG=1"]


async def test_a_failing_status_does_not_stop_the_pings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    async with watched(tmp_path, status=broken) as own:
        with caplog.at_level(logging.CRITICAL):
            await own.after(0)
            assert await own.after(3) == ["WATCHDOG=1"]


async def test_a_failing_check_for_stuck_engines_does_not_stop_the_pings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path) as own:
        own.fault = RuntimeError("a bug")
        await own.after(0)
        assert "WATCHDOG=1" in await own.after(3)
        assert "cannot check for stuck engines" in caplog.text
