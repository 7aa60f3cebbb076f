"""`specd list`: the models on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from specd.cli.answers import Json
from specd.cli.sync_client import SyncClient, sync_client
from specd.cli.words import byte_words, output_width, past_words, table_lines

_HEADERS = ("NAME", "ID", "SIZE", "MODIFIED")


def list_models(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
) -> None:
    for line in lines(sync_client(), output_width(), prefix):
        typer.echo(line)


def lines(client: SyncClient, width: int, prefix: str = "") -> list[str]:
    """Return a header and a line for each model.  width: of the terminal, in columns."""
    return table_lines([_HEADERS, *_rows(client.get("/api/tags"), prefix.lower())], width)


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
