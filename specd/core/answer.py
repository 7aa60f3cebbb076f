"""What comes back: tokens, and one end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from specd import errors
from specd.core.request import ToolCall
from specd.core.token_id import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    token: str
    bytes: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """n_prompt includes n_cached; durations are nanoseconds of engine time.

    native_ns: the part of generate_ns that passes of both models took; the rest is ours.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_ns: int = 0
    n_generated: int = 0
    generate_ns: int = 0
    native_ns: int = 0


class SpeculationState(StrEnum):
    ACTIVE = "active"  # drafting when the request ended
    PARKED = "parked"  # switched off by measurement, probing now and then
    OFF = "off"  # never drafted: no drafter, or the user said so


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """What speculation did for one request (SPECULATION.md 4).

    lookup_n, lookup_n_accepted: the part of draft_n and draft_n_accepted that prompt lookup found.
    reason: why nothing is drafted at the end, or was at all; while it is ACTIVE and something was,
    why there is no draft model beside prompt lookup, else "".
    speedup: seconds that plain passes would have taken for its tokens ÷ those that were taken,
    plain ones as measured of late with as many requests at a time.  None while unknown.
    threshold: the share of drafted tokens, from 0 to 1, that must be accepted: the user's own
    number, or the share at which drafting breaks even, by the costs known at the end of the request
    (`CostModel.break_even`).  None if nothing can be drafted, or no wide pass was measured yet.
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
    """The request has left the queue for a slot, which has n_cached of its n_prompt tokens."""

    n_prompt: int = 0
    n_cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Text that is safe to show: whole UTF-8, and no part of a stop string."""

    text: str
    n_tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """context: prompt and answer as token ids, where they were asked for."""

    reason: StopReason
    usage: Usage
    speculation: SpeculationStats
    context: tuple[TokenId, ...] = ()
    load_ns: int = 0


class FailureKind(StrEnum):
    INVALID = "invalid"  # the request's own fault
    CONTEXT_LENGTH = "context_length"
    ENGINE = "engine"  # decode failed; the engine lives
    CRASHED = "crashed"  # the engine process is gone
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    kind: FailureKind
    message: str
    n_prompt: int = 0
    n_ctx: int = 0

    def error(self) -> errors.SpecdError:
        """The same, to be raised."""
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
    """A parsed piece of an answer, as dialects send it; each part may be empty.

    tool_calls come whole, never in pieces.
    """

    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """One text's vector as the model pools it, not normalised; n_tokens with special ones."""

    vector: tuple[float, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One entry per text, in order."""

    entries: tuple[Embedding, ...]
    load_ns: int = 0
