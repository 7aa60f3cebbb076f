"""Implement `specd rm`: delete models from disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from specd.cli.completion import complete_models
from specd.cli.sync_client import DaemonRefused, SyncClient, sync_client


def rm(
    models: Annotated[
        list[str], typer.Argument(help="Models from `specd list`.", autocompletion=complete_models)
    ],
) -> None:
    delete(sync_client(), models)


def delete(client: SyncClient, models: Sequence[str]) -> None:
    for model in models:
        _unload(client, model)
        client.send_request("DELETE", "/api/delete", {"model": model})
        typer.echo(f"deleted '{model}'")


def _unload(client: SyncClient, model: str) -> None:
    """Unload the model.  A failure is only a warning, since the model can still be deleted."""
    try:
        client.send_request("POST", "/api/generate", {"model": model, "keep_alive": 0})
    except DaemonRefused as error:
        if error.status != 404:
            typer.echo(f"Warning: cannot stop '{model}': {error}", err=True)
