"""Show progress of pull, push and create: a bar per layer, a sentence per step."""

from __future__ import annotations

from collections.abc import AsyncIterator
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


async def show_progress(console: Console, lines: AsyncIterator[dict[str, Any]]) -> None:
    """Show the objects of a pull, a push or a create as they arrive."""
    reported_total = ""
    screen = _ProgressDisplay(console)
    try:
        async for line in lines:
            status, digest, total = (line.get(key) for key in ("status", "digest", "total"))
            if digest and total:
                screen.bar(str(digest), str(status), line.get("completed", 0), total)
            elif status != reported_total:
                reported_total = str(status)
                screen.say(reported_total)
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
