"""Implement `specd push`: upload a model to a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specd.cli.completion import complete_models

if TYPE_CHECKING:
    from rich.console import Console

    from specd.cli.client import Client


def push(
    model: Annotated[
        str,
        typer.Argument(
            help="The model; its name includes the registry: host:port/user/model:tag.",
            autocompletion=complete_models,
        ),
    ],
    *,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use plain HTTP.")] = False,
) -> None:
    import asyncio

    from specd.cli.client import daemon_client
    from specd.cli.formatting import make_console

    asyncio.run(_push(daemon_client(), make_console(), model, insecure=insecure))


async def _push(client: Client, console: Console, model: str, *, insecure: bool) -> None:
    from specd.cli.progress import show_progress

    body: dict[str, object] = {"model": model}
    if insecure:
        body["insecure"] = True
    async with client:
        await show_progress(console, client.progress("/api/push", body))
