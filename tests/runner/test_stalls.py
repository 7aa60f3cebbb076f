"""Engines that hang, crash or cannot be killed; a fake engine runs in the child process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from specd import core, errors
from specd.runner import State
from tests.runner.processes import answer_of, asking, failure_of, running


async def test_an_engine_without_progress_during_an_answer_is_killed() -> None:
    async with running(timeout_s=0.3) as process:
        await process.ready()
        hanging = process.client.generate(asking("!block"))
        failed = failure_of([event async for event in hanging])
        assert failed.kind is core.FailureKind.CRASHED
        assert "it made no progress for 0.3 s" in failed.message
        assert not errors.is_out_of_memory_message(failed.message)
        assert await process.ended() is State.CRASHED
        assert not process.is_stuck


async def test_a_hanging_engine_is_killed_even_after_its_request_is_cancelled() -> None:
    async with running(timeout_s=0.3) as process:
        await process.ready()
        leaving = asyncio.ensure_future(answer_of(process, "!block"))
        for _ in range(5):  # until it hangs
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await process.ended() is State.CRASHED


async def test_an_engine_that_is_slow_or_idle_is_not_killed() -> None:
    """It runs longer than the limit: `SLOW` steps with a check each, of which ten are too many."""
    async with running(timeout_s=1.0) as process:
        await process.ready()
        [done] = await answer_of(process, "slow")
        assert isinstance(done, core.Done)
        assert isinstance((await answer_of(process, "slow"))[-1], core.Done)
        assert process.state is State.READY


async def test_a_stopped_engine_is_killed_sooner() -> None:
    async with running(timeout_s=2.0) as process:
        await process.ready()
        failed = failure_of(await answer_of(process, "!stop"))
        assert "it was stopped by a signal for 1 s" in failed.message
        assert await process.ended() is State.CRASHED


@pytest.mark.parametrize(
    "fault, words",
    [
        ("garbage", "it sent an invalid message"),
        ("huge", "exceeds 67108864"),
        ("half", "signal: SIGKILL"),
        ("hang-up", "it closed its connection"),
        ("exit", "exit status 0"),
        ("segfault", "signal: SIGSEGV"),
        ("abort", r"signal: SIGABRT: ggml.c:42: GGML_ASSERT\(tensor\) failed"),
        ("grandchild", "signal: SIGKILL"),
    ],
)
@pytest.mark.parametrize("when", ["load", "answer"])
async def test_the_error_names_the_cause_of_the_engines_end(
    fault: str, words: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that we killed is not reported as out of memory."""
    monkeypatch.setenv("FAKE_GRANDCHILD", str(tmp_path / "grandchild"))
    n_before = psutil.Process().num_fds()
    async with running(f"{fault}-in-load" if when == "load" else "fine") as process:
        if when == "load":
            with pytest.raises(errors.EngineError, match=words) as told:
                await process.ready()
            message = str(told.value)
            starved = isinstance(told.value, errors.OutOfMemory)
        else:
            await process.ready()
            message = failure_of(await answer_of(process, f"!{fault}")).message
            starved = errors.is_out_of_memory_message(message)
        assert await process.ended() is State.CRASHED
    assert re.search(words, message)
    assert starved == (words == "signal: SIGKILL")
    assert psutil.Process().num_fds() == n_before
    if fault == "grandchild":
        os.kill(int((tmp_path / "grandchild").read_text(encoding="ascii")), signal.SIGKILL)
