"""The daemon's side of one engine process."""

from specd.runner.process import Process, State

__all__ = ["Process", "State"]
