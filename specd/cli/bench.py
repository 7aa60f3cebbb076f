"""Implement `specd bench`: measure whether a pair is faster on this machine, mode by mode."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specd.cli.completion import complete_models
from specd.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from specd.bench.config import BenchConfig
    from specd.bench.peer import PeerBinary
    from specd.bench.quantized_blocks import FileType
    from specd.bench.report import Report
    from specd.bench.session import BenchStep
    from specd.settings import Settings

_MAX_DRAFT = 16
_MAX_STREAMS = 64


def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="A model on disk; default: the demo pair, its target padded to 1b.",
            autocompletion=complete_models,
        ),
    ] = "",
    target: Annotated[Path | None, typer.Option(help="A GGUF file to use as the model.")] = None,
    drafter: Annotated[
        Path | None,
        typer.Option(help="A GGUF file to use as the drafter; default: the one specd chooses."),
    ] = None,
    target_size: Annotated[
        str,
        typer.Option(
            help="Pad the target to this many parameters, e.g. 350m or 1b; its text stays the same."
        ),
    ] = "",
    target_type: Annotated[
        str, typer.Option(help="Type of the padded target's weights: Q8_0, Q4_0 or F16.")
    ] = "Q8_0",
    workloads: Annotated[
        str, typer.Option(help="Workloads, comma-separated (default: all): code_completion, ...")
    ] = "",
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts per workload.", show_default="2")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="How often to repeat the run, each time with other prompts.")
    ] = 1,
    tokens: Annotated[
        int | None, typer.Option(min=16, max=1500, help="Tokens per answer.", show_default="48")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=2.0, help="Temperature; repeat for several (default: 0.8)."),
    ] = None,
    drafts: Annotated[
        str, typer.Option(help="Fixed draft lengths: 1-8, or 1,3,7.", show_default="1,3,7")
    ] = "",
    streams: Annotated[str, typer.Option(help="Numbers of parallel answers, e.g. 1,2,4,8.")] = "1",
    peer: Annotated[
        str,
        typer.Option(
            help="`llama-server` or `llama-server=PATH`: the same files and prompts there, too."
        ),
    ] = "",
    peer_drafts: Annotated[
        str,
        typer.Option(help="Draft lengths for llama-server, at most three."),
    ] = "1,3,7",
    threads: Annotated[int, typer.Option(min=0, help="0: as many as the daemon uses.")] = 0,
    gpu_layers: Annotated[int, typer.Option(min=-1, help="Layers on the GPU; -1: all.")] = -1,
    kv_type: Annotated[
        str, typer.Option(help="Number format of the KV cache; OLLAMA_KV_CACHE_TYPE without it.")
    ] = "",
    each_drafter: Annotated[
        bool,
        typer.Option(
            "--each-drafter", help="Also measure automatic mode with each kind of drafter alone."
        ),
    ] = False,
    overhead: Annotated[
        bool,
        typer.Option(
            "--overhead",
            help="Compare plain decoding only, with the peer's and per token outside of llama.cpp.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Use fewer prompts and modes, for a first estimate.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures and runs to this file.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
    report_folder: Annotated[
        Path | None, typer.Option("--report", help="Write report.md and its plots to this folder.")
    ] = None,
) -> None:
    from specd.bench.config import BenchConfig
    from specd.bench.workload import WORKLOADS
    from specd.settings import Settings

    output = _OutputFiles(json_file, report_folder, markdown=markdown)
    output.check()
    settings = Settings()
    if kv_type:
        settings = settings.model_copy(update={"kv_cache_type": kv_type})
    config = BenchConfig(
        model=model,
        target=target,
        drafter=drafter,
        target_size=target_size,
        target_type=_file_type(target_type),
        workloads=_names(workloads) or WORKLOADS,
        n_prompts=prompts or (1 if quick else 2),
        n_repeats=runs,
        n_tokens=tokens or (32 if quick else 48),
        temperatures=tuple(dict.fromkeys(temperature or [0.8])),
        draft_lengths=parse_numbers("--drafts", drafts or ("3" if quick else "1,3,7"), _MAX_DRAFT),
        streams=parse_numbers("--streams", streams, _MAX_STREAMS),
        prompt_lookup=settings.prompt_lookup,
        each_drafter=each_drafter,
        peer=_peer(peer),
        peer_lengths=parse_numbers("--peer-drafts", peer_drafts, _MAX_DRAFT),
        overhead=overhead,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
    )
    output.write_report(_measure(config, settings))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def parse_numbers(option: str, text: str, largest: int) -> tuple[int, ...]:
    """Return the numbers of `1-8`, `3` or `1,3,5-7` in ascending order, each once.

    Raises InvalidRequest for any other text.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,3})\s*(?:-\s*([0-9]{1,3})\s*)?", part)
        if match is None:
            raise InvalidRequest(f"{option}: {text!r} is not a list of numbers; try 1-8 or 1,3,7")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not numbers or min(numbers) < 1 or max(numbers) > largest:
        raise InvalidRequest(f"{option}: numbers must be from 1 to {largest}")
    return tuple(sorted(numbers))


def _file_type(name: str) -> FileType:
    from specd.bench.quantized_blocks import FileType

    try:
        return FileType(name.upper())
    except ValueError:
        raise InvalidRequest(f"--target-type: one of {', '.join(FileType)}") from None


def _peer(text: str) -> PeerBinary | None:
    """Return the binary for `llama-server` (searched) or `llama-server=PATH`.

    Raises InvalidRequest.
    """
    from specd.bench.peer import PeerBinary

    if not text:
        return None
    name, _, path = text.partition("=")
    if name != "llama-server":
        raise InvalidRequest(f"--peer: {name!r} is not supported; use llama-server")
    return PeerBinary.find(path or None)


# --------------------------------------------------------------------------- progress


def _measure(config: BenchConfig, settings: Settings) -> Report:
    import asyncio

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from specd.bench.session import run_bench

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Standard output carries only the report.
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        padding = progress.add_task("Writing the synthetic target", total=1.0, visible=False)
        subject = config.subject(
            settings, lambda share: progress.update(padding, completed=share, visible=True)
        )
        progress.update(padding, visible=False)
        return asyncio.run(run_bench(config, subject, settings, _show(progress)))


def _show(progress: Progress) -> Callable[[BenchStep], None]:
    """Return a function that prints the estimated time once, then advances the bar."""
    task = progress.add_task("Loading", total=None)

    def show(step: BenchStep) -> None:
        if step.run is None:
            progress.console.print(f"This takes about {_minutes(step.total_s)}.")
            words = "Warming up"
        else:
            words = f"{step.run.workload}, {step.run.mode.name} at {step.run.temperature:g}"
        progress.update(task, completed=step.done_s, total=step.total_s, description=words)

    return show


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


# --------------------------------------------------------------------------- output


@dataclass(frozen=True, slots=True)
class _OutputFiles:
    """The outputs of a run: the terminal always, files if they are requested."""

    json_file: Path | None
    folder: Path | None
    markdown: bool

    def check(self) -> None:
        """Check that the files can be written, before minutes are spent.  Raises InvalidRequest."""
        try:
            if self.json_file is not None:
                self.json_file.open("a", encoding="utf-8").close()
        except OSError as error:
            raise InvalidRequest(f"--json: {self.json_file}: {error.strerror}") from error
        if self.folder is None:
            return
        from specd.bench.plots import need_matplotlib

        need_matplotlib()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"--report: {self.folder}: {error.strerror}") from error

    def write_report(self, report: Report) -> None:
        from specd.bench.plots import draw_plots
        from specd.bench.report import to_json
        from specd.bench.tables import markdown_document
        from specd.cli.formatting import make_console

        if self.json_file is not None:
            text = json.dumps(to_json(report), indent=1, ensure_ascii=False)
            self.json_file.write_text(text + "\n", encoding="utf-8")
        if self.folder is not None:
            text = markdown_document(report, draw_plots(report, self.folder))
            (self.folder / "report.md").write_text(text, encoding="utf-8")
        if self.markdown:
            typer.echo(markdown_document(report), nl=False)
        else:
            _print(report, make_console())


def _print(report: Report, console: Console) -> None:
    from specd.bench.summary import heading, title, verdict
    from specd.bench.tables import details, overviews

    for line in heading(report):
        console.print(line, markup=False)
    for temperature, streams, compared, mix in report.parts():
        name = title(temperature, streams)
        tables = list(overviews(name, compared, mix)) or [details(name, compared[0])]
        for table in tables:
            console.print()
            console.print(table.rich())
        for sentence in verdict(report, compared, mix):
            console.print(sentence, markup=False)
