"""One engine process; a fake engine runs in the child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import psutil
import pytest

from specd import core, errors
from specd.runner import Process, State
from specd.runner.client import MAX_UNREAD
from tests.fakes.engine import BYE
from tests.runner.processes import FAKE, ROOT, answer_of, asking, failure_of, running


class Pages:
    """A history that keeps every write."""

    def __init__(self, *pages: core.PairHistory) -> None:
        self.pages = list(pages)

    async def read(self) -> core.PairHistory | None:
        return self.pages[-1] if self.pages else None

    def write(self, history: core.PairHistory) -> None:
        self.pages.append(history)

    def bands(self) -> list[tuple[int, str]]:
        return [(band.n_requests, band.parked) for page in self.pages for band in page.bands]


async def test_an_answer_is_tokens_and_one_done_event() -> None:
    async with running() as process:
        states = [process.state]
        assert (await process.ready()).n_vocab == 1000
        assert [*states, process.state] == [State.STARTING, State.READY]
        *tokens, done = await answer_of(process, "a b c")
        assert [t.text for t in tokens if isinstance(t, core.Token)] == ["a ", "b ", "c "]
        assert isinstance(done, core.Done)
        assert await process.client.tokenize("w1 w22", add_bos=False) == [1, 22]
    assert await process.ended() is State.STOPPED


async def test_a_prompt_that_cannot_be_tokenized_raises_the_reason() -> None:
    async with running() as process:
        await process.ready()
        with pytest.raises(errors.InvalidRequest, match="no image"):
            await process.client.tokenize("refused?", add_bos=False)


async def test_concurrent_answers_do_not_mix() -> None:
    async with running() as process:
        await process.ready()
        answers = await asyncio.gather(*(answer_of(process, f"{n} {n}") for n in range(20)))
        for n, (*tokens, done) in enumerate(answers):
            assert {t.text for t in tokens if isinstance(t, core.Token)} == {f"{n} "}
            assert isinstance(done, core.Done)


async def test_a_crash_in_load_reports_the_exit_status_and_the_last_output() -> None:
    async with running("crash-in-load") as process:
        with pytest.raises(errors.LoadFailed, match=r"exit status 3: GGML_ASSERT\(tensor\) failed"):
            await process.ready()
        assert await process.ended() is State.CRASHED


async def test_a_refused_load_reports_the_engines_reason() -> None:
    async with running("refuse") as process:
        with pytest.raises(errors.LoadFailed, match="refuse: not a GGUF file"):
            await process.ready()
        assert await process.ended() is State.CRASHED


@pytest.mark.contract("sched.oom")
async def test_a_load_without_memory_raises_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault, words in (("die-of-memory", "bad_alloc"), ("killed-in-load", "SIGKILL")):
        async with running(fault) as process:
            with pytest.raises(errors.OutOfMemory, match=words):
                await process.ready()
    (tmp_path / "once").touch()
    monkeypatch.setenv("FAKE_OUT_OF_MEMORY", str(tmp_path / "once"))
    async with running() as process:
        with pytest.raises(errors.OutOfMemory, match="out of memory"):
            await process.ready()
    async with running() as process:
        await process.ready()


async def test_a_command_that_does_not_exist_is_a_failed_load() -> None:
    process = Process(core.EngineSpec(weights="w"), command=("/nonexistent/engine",))
    with pytest.raises(errors.LoadFailed, match="cannot start the engine"):
        await process.ready()
    assert await process.ended() is State.CRASHED


async def test_a_load_without_progress_raises_load_stalled() -> None:
    async with running("stall", load_timeout_s=0.01) as process:
        with pytest.raises(errors.LoadStalled, match="timed out waiting"):
            await process.ready()


async def test_a_stop_during_a_load_aborts_it() -> None:
    async with running("stall", load_timeout_s=float("inf")) as process:
        waiting = asyncio.ensure_future(process.ready())
        process.stop()
        with pytest.raises(errors.ShuttingDown):
            await waiting
        assert await process.ended() is State.STOPPED


async def test_a_stop_during_a_load_kills_the_process_without_a_grace_period() -> None:
    """A loading engine has no data to save."""
    async with running("stall", load_timeout_s=float("inf"), grace_s=3600.0) as process:
        process.stop()
        assert await process.ended() is State.STOPPED
        child = process._child  # noqa: SLF001 - nothing else shows the kill
        assert child is not None
        assert child.was_killed


async def test_a_killed_engine_fails_all_running_and_later_answers() -> None:
    async with running() as process:
        await process.ready()
        hanging = process.client.generate(asking("hang"))
        assert isinstance(await anext(hanging), core.Token)
        failed = failure_of(await answer_of(process, "crash"))
        assert failed.kind is core.FailureKind.CRASHED
        assert failed.message.startswith("model runner has unexpectedly stopped, this may be due")
        assert "SIGKILL" in failed.message
        assert errors.is_out_of_memory_message(failed.message)  # idle models are unloaded
        assert failure_of([e async for e in hanging]) == failed
        assert await process.ended() is State.CRASHED
        assert await answer_of(process, "late") == [failed]
        with pytest.raises(errors.EngineCrashed):
            await process.client.tokenize("w1", add_bos=False)


async def test_closing_an_answer_cancels_it_in_the_engine() -> None:
    async with running() as process:
        await process.ready()
        async with contextlib.aclosing(process.client.generate(asking("hang"))) as hanging:
            await anext(hanging)
        assert await process.client.tokenize("cancelled?", add_bos=False) == [1]


async def test_a_cancelled_request_cancels_its_tokenization_in_the_engine() -> None:
    async with running() as process:
        await process.ready()
        hanging = asyncio.ensure_future(process.client.tokenize("hang", add_bos=False))
        assert await process.client.tokenize("w1", add_bos=False) == [1]
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert len(await process.client.tokenize("cancelled?", add_bos=False)) == 1


async def test_a_completed_answer_is_not_cancelled() -> None:
    async with running() as process:
        await process.ready()
        async with contextlib.aclosing(process.client.generate(asking("a"))) as events:
            async for _ in events:
                pass
        assert await process.client.tokenize("cancelled?", add_bos=False) == []


async def test_a_stop_ends_a_running_answer_with_a_shutdown_error() -> None:
    async with running() as process:
        await process.ready()
        hanging = process.client.generate(asking("hang"))
        await anext(hanging)
        process.stop()
        assert failure_of([e async for e in hanging]).kind is core.FailureKind.SHUTDOWN
        assert await process.ended() is State.STOPPED


async def test_an_engine_that_ignores_shutdown_and_sigterm_is_killed() -> None:
    async with running("deaf", grace_s=0.01) as process:
        await process.ready()
        pid = process.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_an_unread_answer_is_cancelled_at_a_limit() -> None:
    async with running() as process:
        await process.ready()
        flood = process.client.generate(asking("flood"))
        await anext(flood)
        await process.client.tokenize("the flood is over", add_bos=False)
        assert await process.client.tokenize("cancelled?", add_bos=False) == [1]
        events = [event async for event in flood]
        assert "not read" in failure_of(events).message
        assert len(events) <= MAX_UNREAD + 2


async def test_a_prompt_larger_than_a_frame_is_an_invalid_request() -> None:
    async with running() as process:
        await process.ready()
        huge = "x" * (65 * 1024 * 1024)
        assert failure_of(await answer_of(process, huge)).kind is core.FailureKind.INVALID
        with pytest.raises(errors.InvalidRequest):
            await process.client.tokenize(huge, add_bos=False)
        assert isinstance((await answer_of(process, "a"))[-1], core.Done)


async def test_an_engine_exits_when_its_daemon_is_killed() -> None:
    """A separate small daemon, which gets SIGKILL."""
    script = (
        "import asyncio, sys; from specd import core; from specd.runner import Process\n"
        "async def main():\n"
        "    process = Process(core.EngineSpec(weights='fine'), command=sys.argv[1:])\n"
        "    await process.ready(); print(process.pid, flush=True); await process.ended()\n"
        "asyncio.run(main())"
    )
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *FAKE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert daemon.stdout is not None
    engine = psutil.Process(int(await daemon.stdout.readline()))
    daemon.kill()
    await daemon.wait()
    await asyncio.to_thread(psutil.wait_procs, [engine])
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


async def test_the_history_is_stored_after_each_answer_and_at_the_end() -> None:
    book = Pages()
    async with running(history_store=book) as process:
        await process.ready()
        await answer_of(process, "a")
        await answer_of(process, "b")
        await process.client.tokenize("all that was said before is heard", add_bos=False)
        assert book.bands() == [(1, ""), (2, "")]
    assert book.bands() == [(1, ""), (2, ""), (2, BYE)]


async def test_the_next_engine_starts_with_the_stored_history() -> None:
    book = Pages()
    for _ in range(2):
        async with running(history_store=book) as process:
            await process.ready()
            await answer_of(process, "a")
    assert book.bands() == [(1, ""), (1, BYE), (2, ""), (2, BYE)]


async def test_a_crash_loses_only_the_history_since_the_last_answer() -> None:
    book = Pages()
    async with running(history_store=book) as process:
        await process.ready()
        await answer_of(process, "a")
        await answer_of(process, "crash")
        await process.ended()
    assert book.bands() == [(1, "")]


async def test_an_engine_works_without_a_history_store() -> None:
    async with running() as process:
        await process.ready()
        await answer_of(process, "a")
        assert await process.client.tokenize("w1", add_bos=False) == [1]
