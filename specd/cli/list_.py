"""Implement `specd list`: list the models on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from specd.cli.formatting import format_bytes, format_past, output_width, table_lines
from specd.cli.sync_client import Json, SyncClient, sync_client

_HEADERS = ("NAME", "ID", "SIZE", "MODIFIED")


def list_models(
    prefix: Annotated[str, typer.Argument(help="Only names with this prefix.")] = "",
) -> None:
    for line in lines(sync_client(), output_width(), prefix):
        typer.echo(line)


def lines(client: SyncClient, width: int, prefix: str = "") -> list[str]:
    """Return a header and one line per model.  width: the terminal's width in columns."""
    return table_lines([_HEADERS, *_rows(client.get("/api/tags"), prefix.lower())], width)


def _rows(tags: Json, prefix: str) -> list[tuple[str, ...]]:
    return [
        (
            model["name"],
            model["digest"][:12],
            "-" if model.get("remote_model") else format_bytes(model["size"]),
            format_past(model["modified_at"]),
        )
        for model in tags.get("models") or []
        if model["name"].lower().startswith(prefix)
    ]
