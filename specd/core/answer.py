"""The events of an answer: tokens, then one end; and embeddings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from specd import errors
from specd.core.engine_request import TokenId
from specd.core.message import ToolCall

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """An asynchronous iterator that can be left early, such as an asynchronous generator."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...
    async def __anext__(self) -> T_co: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    """One of the likeliest tokens at a position.  bytes: the token's UTF-8, perhaps partial."""

    token: str
    bytes: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A chosen token with its log probability.  top: the likeliest tokens in its place."""

    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts and durations of an answer; durations are nanoseconds of engine time.

    n_prompt: tokens of the prompt.  n_cached: the part of n_prompt that was in the cache.
    native_ns: the part of generate_ns that llama.cpp's passes took, of both models.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_ns: int = 0
    n_generated: int = 0
    generate_ns: int = 0
    native_ns: int = 0


class SpeculationState(StrEnum):
    ACTIVE = "active"  # drafting when the request ended
    PARKED = "parked"  # switched off by measurement, with a trial now and then
    OFF = "off"  # nothing was drafted: there is no drafter, or the user switched it off


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """The statistics of speculative decoding for one request.

    draft_n, draft_n_accepted: drafted tokens, accepted ones.
    lookup_n, lookup_n_accepted: the part of these that prompt lookup found.
    rounds: drafts.  n_steps: passes of the target.
    reason, detail: why nothing is drafted, as a name and a sentence; if prompt lookup drafts, why
    there is no draft model; else "".
    speedup: estimated seconds of plain decoding ÷ measured seconds, None if unknown.  The estimate
    uses recent plain passes with as many requests at a time.
    accepted_per_depth, drafted_per_depth: tokens by their position in the draft.
    threshold: the share of drafted tokens, from 0 to 1, that must be accepted: the user's setting,
    or the break-even share by the costs at the end of the request (`CostModel.break_even`).  None
    if nothing can be drafted or no wide pass was measured yet.
    """

    drafter: str | None = None
    pair_source: str | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0
    lookup_n: int = 0
    lookup_n_accepted: int = 0
    rounds: int = 0
    n_steps: int = 0
    state: SpeculationState = SpeculationState.OFF
    reason: str = ""
    detail: str = ""
    speedup: float | None = None
    accepted_per_depth: tuple[int, ...] = ()
    drafted_per_depth: tuple[int, ...] = ()
    threshold: float | None = None

    @property
    def acceptance_rate(self) -> float:
        return self.draft_n_accepted / self.draft_n if self.draft_n else 0.0

    @property
    def mean_draft_length(self) -> float:
        return self.draft_n / self.rounds if self.rounds else 0.0


class StopReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The request has got a slot.  n_cached: the part of its n_prompt tokens in the cache."""

    n_prompt: int = 0
    n_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Text that can be shown: whole UTF-8 and no part of a stop string; may be several tokens."""

    text: str
    n_tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The end of a complete answer.

    context: prompt and answer as token ids, if requested.  load_ns: time until the model was ready.
    """

    reason: StopReason
    usage: Usage
    speculation: SpeculationStats
    context: tuple[TokenId, ...] = ()
    load_ns: int = 0


class FailureKind(StrEnum):
    INVALID = "invalid"  # the request is not valid
    CONTEXT_LENGTH = "context_length"
    ENGINE = "engine"  # decode failed; the engine lives
    CRASHED = "crashed"  # the engine process is gone
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The end of an answer that failed.  n_prompt, n_ctx: tokens, for CONTEXT_LENGTH."""

    kind: FailureKind
    message: str
    n_prompt: int = 0
    n_ctx: int = 0

    def error(self) -> errors.SpecdError:
        """Return the failure as an exception."""
        if self.kind is FailureKind.CONTEXT_LENGTH:
            return errors.ContextLengthExceeded(self.n_prompt, self.n_ctx)
        return _ERRORS[self.kind](self.message)


_ERRORS: Mapping[FailureKind, type[errors.SpecdError]] = {
    FailureKind.INVALID: errors.InvalidRequest,
    FailureKind.ENGINE: errors.EngineError,
    FailureKind.CRASHED: errors.EngineCrashed,
    FailureKind.SHUTDOWN: errors.ShuttingDown,
}


Event = Started | Token | Done | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A parsed piece of an answer; each part may be empty.

    tool_calls: complete calls, never parts of one.
    """

    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The embedding of one text.

    vector: as the model pools it, not normalised.  n_tokens: includes special tokens.
    """

    vector: tuple[float, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """The embeddings of a request, one per text, in order."""

    entries: tuple[Embedding, ...]
    load_ns: int = 0
