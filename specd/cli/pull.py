"""Implement `specd pull`: download models from a registry."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    models: Annotated[list[str], typer.Argument(help="llama3.2, hf.co/user/repo:Q4_K_M, …")],
    *,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use plain HTTP.")] = False,
) -> None:
    from specd.cli.progress import run_transfer

    run_transfer("pull", models, insecure=insecure)
