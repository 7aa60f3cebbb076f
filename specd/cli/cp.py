"""`specd cp`: a second name for a model."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, daemon_client
from specd.cli.words import make_console


def cp(
    source: Annotated[str, typer.Argument(help="A model of `specd list`.")],
    destination: Annotated[str, typer.Argument(help="The name of its copy.")],
) -> None:
    """Copy a model; the copy takes no room of its own."""
    asyncio.run(_cp(daemon_client(), make_console(), source, destination))


async def _cp(client: Client, console: Console, source: str, destination: str) -> None:
    async with client:
        await client.act("POST", "/api/copy", {"source": source, "destination": destination})
    console.print(f"copied '{source}' to '{destination}'", markup=False, soft_wrap=True)
