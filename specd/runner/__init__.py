"""Starts engines and talks to them."""

from specd.runner.client import EngineClient
from specd.runner.engine import (
    ChatRequest,
    Chats,
    Completions,
    Embedder,
    Engine,
    Engines,
    Tokenizer,
    Upstream,
)
from specd.runner.probe import probe
from specd.runner.process import PairHistoryStore, Process, State
from specd.runner.simulation import simulate
from specd.runner.supervisor import ENGINE

__all__ = [
    "ENGINE",
    "ChatRequest",
    "Chats",
    "Completions",
    "Embedder",
    "Engine",
    "EngineClient",
    "Engines",
    "PairHistoryStore",
    "Process",
    "State",
    "Tokenizer",
    "Upstream",
    "probe",
    "simulate",
]
