"""Implement `specd cp`: give a model a second name."""

from __future__ import annotations

from typing import Annotated

import typer

from specd.cli.completion import complete_models
from specd.cli.sync_client import SyncClient, sync_client


def cp(
    source: Annotated[
        str, typer.Argument(help="A model from `specd list`.", autocompletion=complete_models)
    ],
    destination: Annotated[str, typer.Argument(help="The name of the copy.")],
) -> None:
    copy(sync_client(), source, destination)


def copy(client: SyncClient, source: str, destination: str) -> None:
    client.send_request("POST", "/api/copy", {"source": source, "destination": destination})
    typer.echo(f"copied '{source}' to '{destination}'")
