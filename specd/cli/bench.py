"""`specd bench`: plain decoding, fixed draft lengths and auto, measured side by side, now."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from specd.cli.words import make_console
from specd.errors import InvalidRequest
from specd.settings import Settings

if TYPE_CHECKING:
    from specd.bench.report import Report
    from specd.bench.session import Question

_MAX_DRAFT = 16


def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the store; without it the demo pair, its target padded to 1b."
        ),
    ] = "",
    target: Annotated[Path | None, typer.Option(help="A GGUF instead of a model.")] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="A GGUF instead of the drafter that specd would choose.")
    ] = None,
    target_size: Annotated[
        str,
        typer.Option(help="Pad the target to so many parameters, its text unchanged: 350m, 1b."),
    ] = "",
    prompts: Annotated[int, typer.Option(min=1, help="How many of the workload's prompts.")] = 8,
    tokens: Annotated[int, typer.Option(min=16, max=1500, help="Tokens of each answer.")] = 96,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=2.0, help="May be given more than once; 0 and 0.8 without it."),
    ] = None,
    drafts: Annotated[str, typer.Option(help="Fixed draft lengths: 1-8, or 1,3,7.")] = "1-8",
    threads: Annotated[int, typer.Option(min=0, help="0: as many as the daemon would use.")] = 0,
    gpu_layers: Annotated[int, typer.Option(min=-1, help="Layers on the GPU; -1: all.")] = -1,
    kv_type: Annotated[
        str, typer.Option(help="Number format of the KV cache; OLLAMA_KV_CACHE_TYPE without it.")
    ] = "",
    overhead: Annotated[
        bool, typer.Option("--overhead", help="Plain alone: time per token outside llama.cpp.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures and runs to this file.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
) -> None:
    """Measure what speculation gains: plain, fixed draft lengths and auto, side by side."""
    from specd.bench import report as reports
    from specd.bench.session import Question

    if json_file is not None:
        _check_writable(json_file)
    settings = Settings()
    if kv_type:
        settings = settings.model_copy(update={"kv_cache_type": kv_type})
    question = Question(
        model=model,
        target=target,
        drafter=drafter,
        target_size=target_size,
        n_prompts=prompts,
        n_tokens=tokens,
        temperatures=tuple(dict.fromkeys(temperature or (0.0, 0.8))),
        draft_lengths=parse_lengths(drafts),
        overhead=overhead,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
    )
    report = _measure(question, settings)
    if json_file is not None:
        text = json.dumps(reports.to_json(report), indent=1, ensure_ascii=False)
        json_file.write_text(text + "\n", encoding="utf-8")
    if markdown:
        typer.echo(reports.markdown(report), nl=False)
    else:
        _print(report, make_console())


def parse_lengths(text: str) -> tuple[int, ...]:
    """`1-8`, `3`, `1,3,5-7`: ascending, each once.  InvalidRequest for anything else."""
    lengths: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,3})\s*(?:-\s*([0-9]{1,3})\s*)?", part)
        if match is None:
            raise InvalidRequest(f"--drafts: {text!r} is no list of lengths; try 1-8 or 1,3,7")
        lengths.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not lengths or min(lengths) < 1 or max(lengths) > _MAX_DRAFT:
        raise InvalidRequest(f"--drafts: lengths go from 1 to {_MAX_DRAFT}")
    return tuple(sorted(lengths))


def _check_writable(path: Path) -> None:
    """Before minutes are spent on figures that could not be kept."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise InvalidRequest(f"--json: {path}: {error.strerror}") from error


def _measure(question: Question, settings: Settings) -> Report:
    from specd.bench.session import run_bench

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Standard output carries the report alone.
    console = Console(stderr=True)
    n_runs = len(question.plan)
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        padding = progress.add_task("Writing the synthetic target", total=1.0, visible=False)
        subject = question.subject(
            settings, lambda share: progress.update(padding, completed=share, visible=True)
        )
        progress.update(padding, visible=False)
        running = progress.add_task("Loading, warming up", total=n_runs)
        return asyncio.run(
            run_bench(
                question,
                subject,
                settings,
                lambda run: progress.update(
                    running, advance=1, description=f"{run.mode} at {run.temperature:g}"
                ),
            )
        )


def _print(report: Report, console: Console) -> None:
    from specd.bench.report import heading, table, verdict

    for line in heading(report):
        console.print(line, markup=False)
    for comparison in report.comparisons:
        console.print()
        console.print(table(comparison))
        for sentence in verdict(report, comparison):
            console.print(sentence, markup=False)
