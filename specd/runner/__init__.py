"""The daemon's side of one engine process."""

from specd.runner.process import Process, State
from specd.runner.supervisor import ENGINE

__all__ = ["ENGINE", "Process", "State"]
