"""`python -m benchmarks.targets`: measure the ten targets on this machine, in one run.

The exit status is 0 whether the targets are met or not, and 1 where they could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks.targets import session
from benchmarks.targets.docs_folder import write_docs
from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.page import describe_run
from specd.bench.config import BenchConfig
from specd.bench.peer import PeerBinary
from specd.bench.plots import need_matplotlib
from specd.bench.quantized_blocks import FileType
from specd.cli.formatting import make_console
from specd.errors import InvalidRequest, SpecdError
from specd.settings import Settings

#: Large enough that model passes dominate a round, small enough for ten minutes on two cores.
_TARGET_SIZE = "500m"
_TEMPERATURES = (0.0, 0.8)
#: These fill passes of four and eight rows, the widths that suit a CPU.
_DRAFT_LENGTHS = (3, 7)
_QUICK_DRAFT_LENGTHS = (3,)


def main(words: Sequence[str]) -> int:
    """Run with the command-line arguments `words` and return the exit status."""
    arguments = _parser().parse_args(words)
    try:
        findings = _measure(arguments, words)
    except SpecdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.json is not None:
        arguments.json.write_text(findings.to_json(), encoding="utf-8")
    if arguments.report is not None:
        write_docs(findings, arguments.report)
    _print(findings, make_console())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer prompts, lengths and draws")
    parser.add_argument("--report", type=Path, help="write data, plots and page to this folder")
    parser.add_argument("--json", type=Path, help="write all figures and runs to this file")
    parser.add_argument("--peer", help="path of a llama-server; that of `make peer` by default")
    parser.add_argument("--prompts", type=_count, help="prompts of each workload; 2 by default")
    parser.add_argument("--tokens", type=_count, help="tokens of each answer; 48 by default")
    parser.add_argument("--runs", type=_count, default=1, help="repeat all with other prompts")
    parser.add_argument("--target-size", default=_TARGET_SIZE, help="parameters: 500m, 8b")
    parser.add_argument("--target-type", type=_file_type, default=FileType.Q8_0)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as the daemon uses")
    parser.add_argument("--gpu-layers", type=int, default=-1, help="layers on the GPU; -1: all")
    return parser


def _count(text: str) -> int:
    """Return a number from 1 up.  Raises ValueError, which argparse reports."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _file_type(text: str) -> FileType:
    return FileType(text.upper())


def _measure(arguments: argparse.Namespace, words: Sequence[str]) -> Findings:
    """Measure the demo pair and show the progress on standard error."""
    if arguments.report is not None:
        need_matplotlib()
    settings = Settings()
    config = make_config(arguments, settings)
    # Standard output carries the verdicts alone.
    console = Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        task = progress.add_task("Writing the synthetic target", total=1.0)
        subject = config.subject(settings, lambda share: progress.update(task, completed=share))
        return asyncio.run(
            session.run_targets(
                config,
                settings,
                subject,
                session.QUICK if arguments.quick else session.FULL,
                _commands(config, words),
                _show(progress),
            )
        )


def make_config(arguments: argparse.Namespace, settings: Settings) -> BenchConfig:
    """Return the bench behind the targets.  Raises InvalidRequest for an unusable --peer."""
    quick = arguments.quick
    return BenchConfig(
        target_size=arguments.target_size,
        target_type=arguments.target_type,
        n_prompts=arguments.prompts or (1 if quick else 2),
        n_repeats=arguments.runs,
        n_tokens=arguments.tokens or (32 if quick else 48),
        temperatures=_TEMPERATURES,
        draft_lengths=_QUICK_DRAFT_LENGTHS if quick else _DRAFT_LENGTHS,
        prompt_lookup=settings.prompt_lookup,
        peer=PeerBinary.find(arguments.peer) if arguments.peer else _installed_peer(),
        peer_lengths=_DRAFT_LENGTHS,
        n_threads=arguments.threads,
        n_gpu_layers=arguments.gpu_layers,
    )


def _installed_peer() -> PeerBinary | None:
    """Return the best llama-server here, or None: targets that need one stay unmeasured."""
    try:
        return PeerBinary.find()
    except InvalidRequest as error:
        print(f"No llama-server to compare with: {error}", file=sys.stderr)
        return None


def _commands(config: BenchConfig, words: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that repeat this run, absolute paths reduced to file names."""
    names = [Path(word).name if Path(word).is_absolute() else word for word in words]
    before = ["make peer"] if config.peer is not None and config.peer.same_build else []
    return (*before, shlex.join(["python", "-m", "benchmarks.targets", *names]))


def _show(progress: Progress) -> Callable[[session.Progress], None]:
    """Return a callback that prints the estimate once and then moves the bar."""
    task = progress.task_ids[0]
    is_estimate_shown = False

    def show(now: session.Progress) -> None:
        nonlocal is_estimate_shown
        if not is_estimate_shown:
            progress.console.print(f"This takes about {now.total_s / 60:.0f} min.")
            is_estimate_shown = True
        progress.update(task, completed=now.done_s, total=now.total_s, description=now.words)

    return show


def _print(findings: Findings, console: Console) -> None:
    for line in describe_run(findings):
        console.print(line, markup=False)
    verdicts = judge(findings)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
