"""Waiting file threads do not block the event loop or its default threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from pathlib import Path

import pytest

from specd.errors import ModelNotFound, StoreError
from specd.store import AsyncWriter, StoreWriter, safe_files
from specd.store.file_threads import FileThreads
from specd.store.name import parse


@pytest.fixture
def threads() -> FileThreads:
    return FileThreads("test")


async def test_a_locked_store_does_not_block_the_loops_default_threads(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.prepare()
    changes = AsyncWriter(writer)
    with safe_files.exclusive_lock(tmp_path / "manifests"):
        waiting = [asyncio.create_task(changes.delete(parse("m"))) for _ in range(40)]
        for _ in range(40):
            assert await asyncio.to_thread(writer.has_blob, f"sha256:{'0' * 64}") is False
        assert not any(task.done() for task in waiting)
    for answer in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(answer, ModelNotFound)


async def test_exclusive_work_that_cannot_begin_in_time_fails(threads: FileThreads) -> None:
    begun, go = threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        assert go.wait(30)
        return "done"

    running = asyncio.create_task(threads.run_exclusive(first, 0.0))
    assert await asyncio.to_thread(begun.wait, 30)
    ran: list[int] = []
    with pytest.raises(StoreError, match="other changes take too long"):
        await threads.run_exclusive(partial(ran.append, 1), 0.0)
    go.set()
    assert await running == "done", "work that has begun must be awaited"
    await threads.run_exclusive(partial(ran.append, 2), 30.0)
    assert ran == [2]


async def test_cancelled_work_in_the_queue_does_not_run(threads: FileThreads) -> None:
    go, ran = threading.Event(), list[int]()
    first = asyncio.create_task(threads.run_exclusive(partial(go.wait, 30), 30.0))
    second = asyncio.create_task(threads.run_exclusive(partial(ran.append, 1), 30.0))
    await asyncio.wait({first, second}, timeout=0)
    second.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await second
    go.set()
    assert await first
    await threads.run_exclusive(partial(ran.append, 2), 30.0)
    assert ran == [2]


async def test_cancelled_work_has_ended_or_never_begins(threads: FileThreads) -> None:
    begun, go, ended = threading.Semaphore(0), threading.Event(), list[int]()

    def work(n: int) -> None:
        begun.release()
        assert go.wait(30)
        ended.append(n)

    tasks = [asyncio.create_task(threads.do(partial(work, n))) for n in range(5)]
    for _ in range(4):
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    for task in tasks:
        task.cancel()
    await asyncio.wait({tasks[4]})
    assert not ended
    go.set()
    await asyncio.wait(tasks)
    assert sorted(ended) == [0, 1, 2, 3]
    assert all(task.cancelled() for task in tasks)
    threads.close()
