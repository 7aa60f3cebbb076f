"""`specd bench`: plain decoding, fixed draft lengths and auto, measured side by side, now."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from specd.cli.words import make_console
from specd.errors import InvalidRequest
from specd.settings import Settings

if TYPE_CHECKING:
    from specd.bench.report import Report

_DEFAULT_SIZE = "1b"
_MAX_DRAFT = 16
_MAX_THREADS = 1024


def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the store; without it the demo pair with a synthetic target."
        ),
    ] = "",
    target: Annotated[Path | None, typer.Option(help="A GGUF instead of a model.")] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="A GGUF instead of the drafter that specd would choose.")
    ] = None,
    target_size: Annotated[
        str,
        typer.Option(
            help="Pad the target to this many parameters, its text unchanged: 350m, 1b, 3b."
            f" Without a model: {_DEFAULT_SIZE}."
        ),
    ] = "",
    prompts: Annotated[int, typer.Option(min=1, help="How many of the workload's prompts.")] = 8,
    tokens: Annotated[int, typer.Option(min=16, max=1500, help="Tokens of each answer.")] = 96,
    temperature: Annotated[
        list[float], typer.Option(min=0.0, max=2.0, help="May be given more than once.")
    ] = [0.0, 0.8],  # noqa: B006 - typer copies it
    drafts: Annotated[str, typer.Option(help="Fixed draft lengths: 1-8, or 1,3,7.")] = "1-8",
    threads: Annotated[
        int, typer.Option(min=0, max=_MAX_THREADS, help="0: as many as the daemon would use.")
    ] = 0,
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
    from specd.bench.report import markdown as as_markdown
    from specd.bench.report import to_json

    settings = Settings()
    if kv_type:
        settings = settings.model_copy(update={"kv_cache_type": kv_type})
    lengths = [] if overhead else parse_drafts(drafts)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InvalidRequest(f"{json_file.parent}: no such directory")
    session = _Session(
        settings,
        model=model,
        target=target,
        drafter=drafter,
        target_size=target_size,
        n_prompts=prompts,
        n_tokens=tokens,
        temperatures=list(dict.fromkeys(temperature)),
        lengths=lengths,
        with_auto=not overhead,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
    )
    report = session.run()
    if json_file is not None:
        text = json.dumps(to_json(report), indent=1, ensure_ascii=False)
        json_file.write_text(text + "\n", encoding="utf-8")
    if markdown:
        typer.echo(as_markdown(report), nl=False)
    else:
        _print(report)
