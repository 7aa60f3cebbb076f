"""The messages between the daemon and an engine process.

Daemon → engine: Load once, then Submit or Embed, Cancel, Tokenize, Detokenize, Ping, Shutdown.
Engine → daemon: LoadProgress*, then Loaded or LoadRefused.  For each request: Started, Tokens* and
one Finished, or one Embedded, Tokenized or Detokenized.  PairHistoryUpdate at any time, and once
after Shutdown.  Pong immediately after each Ping.
"""

from __future__ import annotations

import msgspec

from specd import core


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Load(_Message, frozen=True):
    """Ask the engine to load a model.

    history: what an earlier engine learned about the same pair; None if unknown.
    """

    spec: core.EngineSpec
    history: core.PairHistory | None = None


class Submit(_Message, frozen=True):
    request_id: int
    request: core.EngineRequest


class Embed(_Message, frozen=True):
    """Ask for the vector of a text; answered by Embedded, or by Finished with a Failed.

    truncate: whether a text that exceeds the limit may be truncated.
    n_ctx: limit of the text in tokens; None is the whole context.
    """

    request_id: int
    text: str
    truncate: bool
    n_ctx: int | None = None


class Cancel(_Message, frozen=True):
    """Ask to free the request's slot at the next step, without another message about it."""

    request_id: int


class Tokenize(_Message, frozen=True):
    """Ask for the tokens of a prompt; answered by Tokenized, or by Finished with a Failed.

    An image becomes as many tokens as it occupies, all negative; none if it cannot be read.
    """

    request_id: int
    pieces: tuple[str | core.Image, ...]
    add_bos: bool


class Detokenize(_Message, frozen=True):
    """Ask for the text of tokens; answered by Detokenized, or by Finished with a Failed.

    Control tokens are written as in a prompt.
    """

    request_id: int
    tokens: tuple[int, ...]


class Ping(_Message, frozen=True):
    """Ask how many steps the engine has made, to detect a stalled one."""


class Shutdown(_Message, frozen=True):
    pass


class LoadProgress(_Message, frozen=True):
    fraction: float


class Loaded(_Message, frozen=True):
    facts: core.EngineFacts


class LoadRefused(_Message, frozen=True):
    """A load that failed.

    out_of_memory: whether it could succeed with more memory or a smaller context.
    """

    message: str
    out_of_memory: bool = False


class Started(_Message, frozen=True):
    """The assignment of a slot to a request; a request that ends in the queue has none."""

    request_id: int
    n_prompt: int
    n_cached: int


class Tokens(_Message, frozen=True):
    """The tokens that one step produced for one slot."""

    request_id: int
    token: core.Token


class Finished(_Message, frozen=True):
    request_id: int
    event: core.Done | core.Failed


class Tokenized(_Message, frozen=True):
    request_id: int
    tokens: list[int]


class Detokenized(_Message, frozen=True):
    request_id: int
    text: str


class Embedded(_Message, frozen=True):
    request_id: int
    embedding: core.Embedding


class PairHistoryUpdate(_Message, frozen=True):
    """The full history of the pair; each update replaces the one before."""

    history: core.PairHistory


class Pong(_Message, frozen=True):
    """The answer to a Ping, sent by another thread than the loop's.

    n_steps: passes of the loop plus messages that it has taken.
    """

    n_steps: int


ToEngine = Load | Submit | Embed | Cancel | Tokenize | Detokenize | Ping | Shutdown
ToDaemon = (
    LoadProgress
    | Loaded
    | LoadRefused
    | Started
    | Tokens
    | Finished
    | Tokenized
    | Detokenized
    | Embedded
    | PairHistoryUpdate
    | Pong
)
