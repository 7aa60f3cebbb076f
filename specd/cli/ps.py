"""`specd ps`: the models in memory, each with its drafter."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, Json, daemon_client
from specd.cli.words import byte_words, expiry_words, make_console, print_table

_HEADERS = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "DRAFTER")


def ps(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
) -> None:
    """List the models in memory, and what drafts for them."""
    asyncio.run(_ps(daemon_client(), make_console(), prefix))


async def _ps(client: Client, console: Console, prefix: str = "") -> None:
    async with client:
        answer = await client.get("/api/ps")
    print_table(console, [_HEADERS, *_rows(answer, prefix.lower())])


def _rows(running: Json, prefix: str) -> list[tuple[str, ...]]:
    return [
        (
            model["name"],
            model["digest"][:12],
            byte_words(model["size"]),
            _processor(model["size"], model.get("size_vram", 0)),
            str(model.get("context_length", "")),
            expiry_words(model["expires_at"]),
            _drafter(model.get("specd") or {}),
        )
        for model in running.get("models") or []
        if model["name"].lower().startswith(prefix)
    ]


def _processor(size: int, size_vram: int) -> str:
    """Ollama's words for where a model lies."""
    if size_vram <= 0:
        return "100% CPU"
    if size_vram >= size:
        return "100% GPU"
    cpu = round((size - size_vram) / size * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def _drafter(specd: Json) -> str:
    drafter = specd.get("drafter")
    if drafter:
        return str(drafter["name"])
    reason = specd.get("reason")
    return f"none ({reason})" if reason else "none"
