"""Every word that daemon and engine say to each other, and nothing else.

Daemon → engine: Load once, then Submit, Cancel, Tokenize, Shutdown.
Engine → daemon: LoadProgress*, Loaded or LoadRefused; then per request Tokens*, Finished (exactly one).
"""

from __future__ import annotations

import msgspec

from specd import core


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Load(_Message):
    spec: core.EngineSpec


class Submit(_Message):
    request_id: int
    request: core.EngineRequest


class Cancel(_Message):
    """The caller has left: free the slot at the next step, answer nothing more."""

    request_id: int


class Tokenize(_Message):
    """Ask for the token ids of a text; answered by Tokenized under the same id."""

    request_id: int
    text: str
    add_bos: bool


class Shutdown(_Message):
    pass


class LoadProgress(_Message):
    fraction: float


class Loaded(_Message):
    facts: core.EngineFacts


class LoadRefused(_Message):
    message: str


class Tokens(_Message):
    """One step's worth of answer for one slot."""

    request_id: int
    token: core.Token


class Finished(_Message):
    request_id: int
    event: core.Done | core.Failed


class Tokenized(_Message):
    request_id: int
    tokens: list[int]


ToEngine = Load | Submit | Cancel | Tokenize | Shutdown
ToDaemon = LoadProgress | Loaded | LoadRefused | Tokens | Finished | Tokenized
