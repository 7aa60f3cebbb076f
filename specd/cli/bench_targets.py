"""`specd bench --targets`: the ten targets, side by side in one run."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from specd.cli.formatting import make_console
from specd.errors import InvalidRequest
from specd.settings import Settings

if TYPE_CHECKING:
    from specd.bench import targets_session
    from specd.bench.config import BenchConfig
    from specd.bench.findings import Findings
    from specd.bench.peer import PeerBinary

#: Large enough that a pass is what a round takes; all of it has ten minutes on two cores.
TARGET_SIZE = "500m"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPaths:
    """Where the findings are kept: a file of their own, and the folder of the page."""

    json_file: Path | None = None
    folder: Path | None = None


def find_peer() -> PeerBinary | None:
    """The best one that there is: without any the targets that need one are not measured."""
    from specd.bench.peer import PeerBinary

    try:
        return PeerBinary.find()
    except InvalidRequest as error:
        Console(stderr=True).print(f"Without a peer: {error}", markup=False)
        return None


def targets(config: BenchConfig, settings: Settings, places: OutputPaths, *, quick: bool) -> None:
    """Measure, print the ten, keep what was found.  Exits 0 whatever they say."""
    if config.model or config.target is not None or config.drafter is not None:
        raise InvalidRequest("--targets judges the demo pair: it takes no model")
    if places.folder is not None:
        from specd.bench.plots import need_matplotlib

        need_matplotlib()
    found = _measure(config, settings, quick=quick)
    if places.json_file is not None:
        places.json_file.write_text(found.to_json(), encoding="utf-8")
    if places.folder is not None:
        from specd.bench.targets_folder import keep

        keep(found, places.folder)
    _print(found, make_console())


def _measure(config: BenchConfig, settings: Settings, *, quick: bool) -> Findings:
    from specd.bench.targets_session import FULL, QUICK, run_targets

    # Standard output carries the verdicts alone.
    console = Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        task = progress.add_task("Writing the synthetic target", total=1.0)
        subject = config.subject(settings, lambda share: progress.update(task, completed=share))
        return asyncio.run(
            run_targets(
                config,
                settings,
                subject,
                QUICK if quick else FULL,
                _commands(config),
                _show(progress),
            )
        )


def _commands(config: BenchConfig) -> tuple[str, ...]:
    """What makes such findings; of a path of this machine only the last name."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    before = ["make peer"] if config.peer is not None and config.peer.same_build else []
    return (*before, shlex.join(["specd", *words]))


def _show(progress: Progress) -> Callable[[targets_session.Progress], None]:
    """Tells of the estimate once, then moves the bar."""
    task = progress.task_ids[0]
    told = False

    def show(now: targets_session.Progress) -> None:
        nonlocal told
        if not told:
            progress.console.print(f"This takes about {now.total_s / 60:.0f} min.")
            told = True
        progress.update(task, completed=now.done_s, total=now.total_s, description=now.words)

    return show


def _print(found: Findings, console: Console) -> None:
    from specd.bench.target_verdicts import judge
    from specd.bench.targets_page import where_words

    for line in where_words(found):
        console.print(line, markup=False)
    verdicts = judge(found)
    for verdict in verdicts:
        console.print()
        console.print(f"{verdict.number:2}  {verdict.outcome}  {verdict.what}", markup=False)
        console.print(f"    demanded: {verdict.goal}", markup=False)
        console.print(f"    measured: {verdict.measured}", markup=False)
        for note in verdict.notes():
            console.print(f"    {note}", markup=False)
    console.print()
    n_met = sum(verdict.outcome == "PASS" for verdict in verdicts)
    console.print(f"{n_met} of {len(verdicts)} targets met", markup=False)
