"""`specd list`: the models on disk."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from specd.cli.client import Client, Json, daemon_client
from specd.cli.words import make_console, past_words, plain_table


def list_models() -> None:
    """List the models on disk."""
    asyncio.run(_list(daemon_client(), make_console()))


async def _list(client: Client, console: Console) -> None:
    async with client:
        answer = await client.get("/api/tags")
    console.print(_table(answer))


def _table(tags: Json) -> Table:
    rows = [
        (
            model["name"],
            model["digest"][:12],
            "-" if model.get("remote_model") else decimal(model["size"]),
            past_words(model["modified_at"]),
        )
        for model in tags.get("models") or []
    ]
    return plain_table(("NAME", "ID", "SIZE", "MODIFIED"), rows)
