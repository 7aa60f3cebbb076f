"""`specd stop`: let a model leave memory."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from specd.cli.client import Client, DaemonRefused, daemon_client


def stop(model: Annotated[str, typer.Argument(help="A model of `specd ps`.")]) -> None:
    """Unload a model once its running answers have ended."""
    asyncio.run(_stop(daemon_client(), model))


async def _stop(client: Client, model: str) -> None:
    async with client:
        try:
            await client.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
        except DaemonRefused as error:
            if error.status != 404:
                raise
            raise DaemonRefused(404, f'couldn\'t find model "{model}" to stop') from error
