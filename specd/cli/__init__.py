"""The commands of `specd`, one file each.  All but `serve`, `pairs` and `bench` only talk HTTP."""

from __future__ import annotations

from specd.cli.app import main

__all__ = ["main"]
