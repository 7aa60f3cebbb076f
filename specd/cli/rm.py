"""`specd rm`: delete models from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, DaemonRefused, daemon_client
from specd.cli.words import make_console


def rm(models: Annotated[list[str], typer.Argument(help="Models of `specd list`.")]) -> None:
    """Remove a model, or several; what others share of it stays."""
    asyncio.run(_rm(daemon_client(), make_console(), models))


async def _rm(client: Client, console: Console, models: Sequence[str]) -> None:
    async with client:
        for model in models:
            await _unload(client, model)
            await client.act("DELETE", "/api/delete", {"model": model})
            console.print(f"deleted '{model}'", markup=False, soft_wrap=True)


async def _unload(client: Client, model: str) -> None:
    """One that cannot be stopped can still be deleted; one that is not there is told then."""
    try:
        await client.act("POST", "/api/generate", {"model": model, "keep_alive": 0})
    except DaemonRefused as error:
        if error.status != 404:
            typer.echo(f"Warning: '{model}' is not stopped: {error}", err=True)
