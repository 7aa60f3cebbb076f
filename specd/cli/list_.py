"""`specd list`: the models on disk."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, Json, daemon_client
from specd.cli.words import byte_words, make_console, past_words, print_table

_HEADERS = ("NAME", "ID", "SIZE", "MODIFIED")


def list_models(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
) -> None:
    """List the models on disk."""
    asyncio.run(_list(daemon_client(), make_console(), prefix))


async def _list(client: Client, console: Console, prefix: str = "") -> None:
    async with client:
        answer = await client.get("/api/tags")
    print_table(console, [_HEADERS, *_rows(answer, prefix.lower())])


def _rows(tags: Json, prefix: str) -> list[tuple[str, ...]]:
    return [
        (
            model["name"],
            model["digest"][:12],
            "-" if model.get("remote_model") else byte_words(model["size"]),
            past_words(model["modified_at"]),
        )
        for model in tags.get("models") or []
        if model["name"].lower().startswith(prefix)
    ]
