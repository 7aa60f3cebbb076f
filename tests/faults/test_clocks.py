"""The system clock is set by a day while an answer runs: the daemon's timers do not change."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import FAKE_ENGINE, ROOT, Daemon, running
from tests.gguf_files import OllamaStore, write_llama

DAY_S = 86_400
KEPT_S = 3600
#: Loaded by each Python process before all else.
_WRONG_CLOCK = """
import time
_time, _time_ns = time.time, time.time_ns
def _wrong_by():
    with open({file!r}) as file:
        return int(file.read())
time.time = lambda: _time() + _wrong_by()
time.time_ns = lambda: _time_ns() + _wrong_by() * 10**9
"""


def set_clock(folder: Path, wrong_by_s: int) -> None:
    draft = folder / "wrong-by.draft"
    draft.write_text(str(wrong_by_s), encoding="ascii")
    draft.replace(folder / "wrong-by")


def wrongly_timed(folder: Path) -> str:
    """Return the PYTHONPATH for a daemon whose clock can be set."""
    clock = _WRONG_CLOCK.format(file=str(folder / "wrong-by"))
    (folder / "sitecustomize.py").write_text(clock, encoding="ascii")
    set_clock(folder, 0)
    return os.pathsep.join([str(folder), str(ROOT)])


async def left_s(daemon: Daemon, wrong_by_s: int) -> float:
    """Return the seconds until the only model expires, by the daemon's own clock."""
    async with daemon.http.get("/api/ps") as response:
        [model] = (await response.json())["models"]
    now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=wrong_by_s)
    return (dt.datetime.fromisoformat(model["expires_at"]) - now).total_seconds()


def durations(line: dict[str, Any]) -> list[int]:
    return [value for name, value in line.items() if name.endswith("_duration")]


@pytest.mark.contract("sched.expiry")
@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S], ids=["forward", "back"])
async def test_setting_the_clock_by_a_day_ends_no_answer_and_expires_no_model(
    tmp_path: Path, jump_s: int
) -> None:
    weights = write_llama(tmp_path / "m.gguf", chat_template=None)
    OllamaStore(tmp_path / "models").add("m", weights=weights)
    path = wrongly_timed(tmp_path)
    async with running(tmp_path, engine=FAKE_ENGINE, PYTHONPATH=path) as daemon:
        asking = asyncio.ensure_future(
            daemon.generate("drip", keep_alive=f"{KEPT_S}s").__aenter__()
        )
        while not asking.done():
            await daemon.answer("a", keep_alive=f"{KEPT_S}s")
        async with asking.result() as response:
            assert json.loads(await response.content.readline())["response"] == "drop "
            [engine] = daemon.engines()
            set_clock(tmp_path, jump_s)
            [*_, done] = await daemon.answer("b c", keep_alive=f"{KEPT_S}s")
            line = json.loads(await response.content.readline())
            assert line["response"] == "drop "
            said_at = dt.datetime.fromisoformat(line["created_at"])
            assert abs((said_at - dt.datetime.now(dt.UTC)).total_seconds() - jump_s) < KEPT_S
        assert durations(done)
        assert all(0 <= duration < KEPT_S * 10**9 for duration in durations(done))
        assert KEPT_S / 2 < await left_s(daemon, jump_s) <= KEPT_S
        set_clock(tmp_path, 0)
        assert KEPT_S / 2 < await left_s(daemon, 0) <= KEPT_S
        assert daemon.engines() == [engine]


async def test_state_written_with_a_future_date_does_not_prevent_a_start(tmp_path: Path) -> None:
    weights = write_llama(tmp_path / "m.gguf", chat_template=None)
    OllamaStore(tmp_path / "models").add("m", weights=weights)
    path = wrongly_timed(tmp_path)
    for wrong_by_s in (DAY_S, 0):
        set_clock(tmp_path, wrong_by_s)
        with (tmp_path / "log").open("wb") as log:
            started = running(tmp_path, engine=FAKE_ENGINE, log=log.fileno(), PYTHONPATH=path)
            async with started as daemon:
                assert (await daemon.answer("a b"))[-1]["done"]
                daemon.process.terminate()
                assert await daemon.process.wait() == 0
        assert "Traceback" not in (tmp_path / "log").read_text(encoding="utf-8")
    assert any((tmp_path / "state").iterdir())
