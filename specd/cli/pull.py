"""Implement `specd pull`: download models from a registry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, daemon_client
from specd.cli.formatting import make_console
from specd.cli.progress import show_progress


def pull(
    models: Annotated[list[str], typer.Argument(help="llama3.2, hf.co/user/repo:Q4_K_M, …")],
    *,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use plain HTTP.")] = False,
) -> None:
    asyncio.run(_pull(daemon_client(), make_console(), models, insecure=insecure))


async def _pull(client: Client, console: Console, models: Sequence[str], *, insecure: bool) -> None:
    async with client:
        for model in models:
            await pull_model(client, console, model, insecure=insecure)


async def pull_model(
    client: Client, console: Console, model: str, *, insecure: bool = False
) -> None:
    body: dict[str, object] = {"model": model}
    if insecure:
        body["insecure"] = True
    await show_progress(console, client.progress("/api/pull", body))
