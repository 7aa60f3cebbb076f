"""Start one engine process at a time; a fake engine runs in the child process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from specd import core
from specd.runner import PairHistoryStore, Process

ROOT = Path(__file__).parents[2]
FAKE = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.engine")


@contextlib.asynccontextmanager
async def running(
    weights: str = "fine", history_store: PairHistoryStore | None = None, **settings: float
) -> AsyncIterator[Process]:
    process = Process(
        core.EngineSpec(weights=weights), command=FAKE, history_store=history_store, **settings
    )
    try:
        yield process
    finally:
        process.stop()
        await process.ended()


def asking(prompt: str) -> core.EngineRequest:
    return core.EngineRequest(prompt=(prompt,), sampling=core.SamplingParams())


async def answer_of(process: Process, prompt: str) -> list[core.Event]:
    return [event async for event in process.client.generate(asking(prompt))]


def failure_of(events: list[core.Event]) -> core.Failed:
    *tokens, last = events
    assert all(isinstance(event, core.Token) for event in tokens)
    assert isinstance(last, core.Failed)
    return last
