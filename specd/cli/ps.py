"""`specd ps`: the models in memory, each with its drafter."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from specd.cli.client import Client, Json, daemon_client
from specd.cli.words import expiry_words, make_console, plain_table

_HEADERS = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "DRAFTER")


def ps() -> None:
    """List the models in memory, and what drafts for them."""
    asyncio.run(_ps(daemon_client(), make_console()))


async def _ps(client: Client, console: Console) -> None:
    async with client:
        answer = await client.get("/api/ps")
    console.print(_table(answer))


def _table(running: Json) -> Table:
    rows = [
        (
            model["name"],
            model["digest"][:12],
            decimal(model["size"]),
            _processor(model["size"], model.get("size_vram", 0)),
            str(model.get("context_length", "")),
            expiry_words(model["expires_at"]),
            _drafter(model.get("specd") or {}),
        )
        for model in running.get("models") or []
    ]
    return plain_table(_HEADERS, rows)


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
