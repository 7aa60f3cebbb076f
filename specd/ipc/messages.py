"""Every message between the daemon and an engine process.

Daemon → engine: Load once, then Submit or Embed, Cancel, Tokenize, Detokenize, Ping, Shutdown.
Engine → daemon: LoadProgress*, Loaded or LoadRefused. Then for each request Started, Tokens* and
one Finished, or one Embedded, Tokenized or Detokenized. PairHistoryUpdate at any time, and once
more after Shutdown. Pong at once after each Ping.
"""

from __future__ import annotations

import msgspec

from specd import core


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Load(_Message, frozen=True):
    """history: what an earlier engine learned of the same pair, where it is known."""

    spec: core.EngineSpec
    history: core.PairHistory | None = None


class Submit(_Message, frozen=True):
    request_id: int
    request: core.EngineRequest


class Embed(_Message, frozen=True):
    """Ask for the vector of a text; answered by Embedded, or by Finished with a Failed.

    truncate: whether what does not fit the context may be cut off.  n_ctx: tokens of the text at
    most; None is the whole context.
    """

    request_id: int
    text: str
    truncate: bool
    n_ctx: int | None = None


class Cancel(_Message, frozen=True):
    """The caller has left: free the slot at the next step, answer nothing more."""

    request_id: int


class Tokenize(_Message, frozen=True):
    """Ask for the tokens of a prompt; answered by Tokenized, or by Finished with a Failed.

    An image has as many as it takes, all negative; one that cannot be read has no number.
    """

    request_id: int
    pieces: tuple[str | core.Image, ...]
    add_bos: bool


class Detokenize(_Message, frozen=True):
    """Ask for the text of tokens; answered by Detokenized, or by Finished with a Failed.

    Control tokens are spelled as a prompt spells them.
    """

    request_id: int
    tokens: tuple[int, ...]


class Ping(_Message, frozen=True):
    """Ask whether the loop moves."""


class Shutdown(_Message, frozen=True):
    pass


class LoadProgress(_Message, frozen=True):
    fraction: float


class Loaded(_Message, frozen=True):
    facts: core.EngineFacts


class LoadRefused(_Message, frozen=True):
    """out_of_memory: it might load with more room, or with a smaller context."""

    message: str
    out_of_memory: bool = False


class Started(_Message, frozen=True):
    """A slot has the request.  Who waits for one until the end has none."""

    request_id: int
    n_prompt: int
    n_cached: int


class Tokens(_Message, frozen=True):
    """One step's worth of answer for one slot."""

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
    """All that is known of the pair by now; each one replaces those before it."""

    history: core.PairHistory


class Pong(_Message, frozen=True):
    """n_steps: the loop's passes, and messages it took.  Said by another thread than the loop's."""

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
