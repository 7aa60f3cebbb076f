"""Bars for pull, push and create: a line for each layer in work, a sentence for each step."""

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
    """Bytes, their speed, and how long they will take."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


async def show_progress(console: Console, lines: AsyncIterator[dict[str, Any]]) -> None:
    """Show the objects of a pull, a push or a create as they come."""
    tasks: dict[str, TaskID] = {}
    told = ""
    with make_bars(console) as bars:
        async for line in lines:
            status, digest, total = (line.get(key) for key in ("status", "digest", "total"))
            if digest and total:
                if digest not in tasks:
                    tasks[digest] = bars.add_task(str(status), total=total)
                bars.update(tasks[digest], completed=line.get("completed", 0), total=total)
            elif status != told:
                told = str(status)
                bars.console.print(told, markup=False)
