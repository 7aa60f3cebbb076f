"""Implement `specd push`: upload a model to a registry."""

from __future__ import annotations

from typing import Annotated

import typer

from specd.cli.completion import complete_models


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
    from specd.cli.progress import run_transfer

    run_transfer("push", [model], insecure=insecure)
