"""Implement `specd serve`: run the daemon in this process."""

from __future__ import annotations

import typer


def serve() -> None:
    from specd import daemon
    from specd.settings import Settings

    raise typer.Exit(daemon.main(Settings()))
