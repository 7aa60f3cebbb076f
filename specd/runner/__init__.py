"""Runs an engine process and talks to it."""

from specd.runner.probe import probe
from specd.runner.process import PairHistoryStore, Process, State
from specd.runner.supervisor import ENGINE

__all__ = ["ENGINE", "PairHistoryStore", "Process", "State", "probe"]
