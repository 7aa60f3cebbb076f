"""Show progress of pull, push and create: a bar per layer, a sentence per step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from specd.cli.client import Client, daemon_client
from specd.cli.formatting import make_console


def make_bars(console: Console) -> Progress:
    """Return bars that show bytes, speed and remaining time."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def run_transfer(verb: str, models: Sequence[str], *, insecure: bool) -> None:
    """Pull or push the models, one after the other."""

    async def run(client: Client, console: Console) -> None:
        async with client:
            for model in models:
                await transfer(client, console, verb, model, insecure=insecure)

    asyncio.run(run(daemon_client(), make_console()))


async def transfer(
    client: Client, console: Console, verb: str, model: str, *, insecure: bool = False
) -> None:
    """Pull or push one model."""
    body = {"model": model, **({"insecure": True} if insecure else {})}
    await show_progress(console, client.progress(f"/api/{verb}", body))


async def show_progress(console: Console, lines: AsyncIterator[dict[str, Any]]) -> None:
    """Show the objects of a pull, a push or a create as they arrive."""
    reported = ""
    screen = _ProgressDisplay(console)
    try:
        async for line in lines:
            status, digest, total = (line.get(key) for key in ("status", "digest", "total"))
            if digest and total:
                screen.bar(str(digest), str(status), line.get("completed", 0), total)
            elif status != reported:
                reported = str(status)
                screen.say(reported)
    finally:
        screen.rest()


class _ProgressDisplay:
    """A display of sentences and groups of bars; finished bars stay on the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def bar(self, digest: str, title: str, completed: int, total: int) -> None:
        if self._bars is None:
            self._bars = make_bars(self._console)
            self._bars.start()
        if digest not in self._tasks:
            self._tasks[digest] = self._bars.add_task(title, total=total)
        self._bars.update(self._tasks[digest], completed=completed, total=total)

    def say(self, sentence: str) -> None:
        self.rest()
        self._console.print(sentence, markup=False, soft_wrap=True)

    def rest(self) -> None:
        """Stop updating the bars, and leave them on the screen."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks = None, {}
