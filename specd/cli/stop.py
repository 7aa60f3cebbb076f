"""Implement `specd stop`: unload a model from memory."""

from __future__ import annotations

from typing import Annotated

import typer

from specd.cli.completion import complete_loaded_models
from specd.cli.sync_client import DaemonRefused, SyncClient, sync_client


def stop(
    model: Annotated[
        str, typer.Argument(help="A model from `specd ps`.", autocompletion=complete_loaded_models)
    ],
) -> None:
    unload(sync_client(), model)


def unload(client: SyncClient, model: str) -> None:
    """Unload the model.  Raises DaemonRefused, in Ollama's words if there is no such model."""
    try:
        client.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
    except DaemonRefused as error:
        if error.status != 404:
            raise
        raise DaemonRefused(404, f'couldn\'t find model "{model}" to stop') from error
