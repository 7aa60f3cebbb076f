"""Implement the `specd` commands, one file each.

Most use only the daemon's HTTP API; docs/ARCHITECTURE.md lists those that import more.
"""

from __future__ import annotations

from specd.cli.app import main

__all__ = ["main"]
