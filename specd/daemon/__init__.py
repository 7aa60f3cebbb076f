"""The composition root: builds the rooms, wires them, serves, and stops them in reverse."""

from specd.daemon.serve import main, run

__all__ = ["main", "run"]
