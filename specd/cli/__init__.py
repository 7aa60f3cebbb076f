"""Implement the `specd` commands, one file each.

All but `serve`, `pairs` and `bench` only use the daemon's HTTP API.
"""

from __future__ import annotations

from specd.cli.app import main

__all__ = ["main"]
