"""Slots of the cache, the counters of their requests, and the choice of a slot for a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from specd.core import EngineRequest, SpeculationStats, TokenId, TokenLogprob, Usage
from specd.engine.detokenizer import Detokenizer, StopFilter
from specd.engine.grammar.state import GrammarState, GuidedSampler
from specd.engine.media import Media, Prompt
from specd.engine.sampler import CoupledSampler, Sampler
from specd.engine.sampler_chain import ChainSampler

#: Fewest steps for which a speedup is reported; fewer measure mostly noise.
_MIN_SPEEDUP_STEPS = 8


class SlotState(Enum):
    IDLE = auto()
    PREFILL = auto()
    DECODE = auto()


@dataclass(slots=True)
class RequestCounters:
    """Counters of one request.  Times are nanoseconds of the engine's clock."""

    started_ns: int = 0
    first_token_ns: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_lookup: int = 0
    n_lookup_accepted: int = 0
    rounds: int = 0
    n_steps: int = 0
    native_ns: int = 0
    step_s: float = 0.0
    plain_s: float = 0.0
    drafted_per_depth: list[int] = field(default_factory=list)
    accepted_per_depth: list[int] = field(default_factory=list)

    def count_draft(self, n_drafted: int, n_accepted: int, *, is_from_lookup: bool = False) -> None:
        if n_drafted:
            self.rounds += 1
        if is_from_lookup:
            self.n_lookup += n_drafted
            self.n_lookup_accepted += n_accepted
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        while len(self.drafted_per_depth) < n_drafted:
            self.drafted_per_depth.append(0)
            self.accepted_per_depth.append(0)
        for depth in range(n_drafted):
            self.drafted_per_depth[depth] += 1
            self.accepted_per_depth[depth] += depth < n_accepted

    def usage(self, now_ns: int) -> Usage:
        began = self.first_token_ns or now_ns
        return Usage(
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            prompt_ns=began - self.started_ns,
            n_generated=self.n_generated,
            generate_ns=now_ns - began,
            native_ns=self.native_ns,
        )

    def speedup(self) -> float | None:
        """Return the seconds of the same tokens in plain passes ÷ theirs; None: too few steps."""
        tokens = self.n_steps + self.n_accepted
        if self.n_steps < _MIN_SPEEDUP_STEPS or not self.step_s:
            return None
        return tokens * (self.plain_s / self.n_steps) / self.step_s

    def speculation(self, **facts: object) -> SpeculationStats:
        return SpeculationStats(
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_accepted,
            lookup_n=self.n_lookup,
            lookup_n_accepted=self.n_lookup_accepted,
            rounds=self.rounds,
            n_steps=self.n_steps,
            accepted_per_depth=tuple(self.accepted_per_depth),
            drafted_per_depth=tuple(self.drafted_per_depth),
            **facts,  # type: ignore[arg-type]
        )


@dataclass(slots=True)
class Slot:
    """One sequence of the cache, and the request that it serves, if any.

    tokens: those that the cache holds or will hold next.  n_past: how many of them it holds.
    media: the images among the tokens, by the index of the first token.
    n_ctx: most tokens that the request may have.
    n_repeatable: cached tokens that were read exactly as every prompt with this prefix is read.
    While decoding, the last token has been sampled but not evaluated, so n_past is one less than
    len(tokens), or two less if the token before it was a leaf of the last pass.
    An idle slot keeps its tokens: a later request may reuse them as a prefix.
    """

    id: int
    state: SlotState = SlotState.IDLE
    tokens: list[TokenId] = field(default_factory=list)
    media: dict[int, Media] = field(default_factory=dict)
    n_past: int = 0
    n_repeatable: int = 0
    n_ctx: int = 0
    last_used: int = 0
    request_id: int = -1
    request: EngineRequest | None = None
    sampler: Sampler | None = None
    visible_bytes: Callable[[TokenId], bytes] = lambda _: b""
    detokenizer: Detokenizer = field(default_factory=Detokenizer)
    stop: StopFilter = field(default_factory=lambda: StopFilter(()))
    pending_logprobs: list[TokenLogprob] = field(default_factory=list)
    counters: RequestCounters = field(default_factory=RequestCounters)

    def begin(
        self,
        request_id: int,
        request: EngineRequest,
        prompt: Prompt,
        n_cached: int,
        grammar: GrammarState | None = None,
    ) -> None:
        """Assign a request to the slot, whose cache already holds its first n_cached tokens."""
        self.state = SlotState.PREFILL
        self.request_id, self.request = request_id, request
        self.tokens, self.media, self.n_past = prompt.tokens, prompt.media, n_cached
        self.n_repeatable = min(self.n_repeatable, n_cached)
        params, chain = request.sampling, request.sampling.chain
        free = CoupledSampler(params) if chain is None else ChainSampler(params, chain)
        self.sampler = free if grammar is None else GuidedSampler(free, grammar)
        self.detokenizer = Detokenizer()
        self.stop = StopFilter(request.stop)
        self.pending_logprobs = []
        self.counters = RequestCounters(n_prompt=len(prompt.tokens), n_cached=n_cached)

    def release(self) -> None:
        """Remove the request; keep the cached tokens."""
        del self.tokens[self.n_past :]
        self.state = SlotState.IDLE
        self.request_id, self.request, self.sampler = -1, None, None

    @property
    def n_left(self) -> int:
        """Tokens that the request may still generate; a large number if it set no limit."""
        assert self.request is not None
        if self.request.n_predict < 0:
            return 1 << 31
        return self.request.n_predict - self.counters.n_generated

    @property
    def text_tokens(self) -> list[TokenId]:
        """The tokens without those of images."""
        return [token for token in self.tokens if token >= 0] if self.media else self.tokens

    def n_text_tokens(self, n: int) -> int:
        """Return how many of the first n tokens are text."""
        if not self.media:
            return n
        earlier_media = ((first, part.n_tokens) for first, part in self.media.items() if first < n)
        return n - sum(min(n - first, n_tokens) for first, n_tokens in earlier_media)

    @property
    def next_media(self) -> tuple[int, Media] | None:
        """(index of its first token, image) of the first image not wholly in the cache, or None."""
        for first, part in self.media.items():
            if self.n_past < first + part.n_tokens:
                return first, part
        return None

    @property
    def n_text_ahead(self) -> int:
        """Number of tokens to read as text, up to the next image or to the end."""
        end = len(self.tokens) if self.next_media is None else self.next_media[0]
        return max(end - self.n_past, 0)


def common_prefix(a: list[TokenId], b: list[TokenId]) -> int:
    """Return the length of the longest common prefix, by bisection: slices compare fast."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def best_slot(
    slots: list[Slot], tokens: list[TokenId], reusable: Callable[[int, int], int]
) -> tuple[Slot, int] | None:
    """Return the best idle slot for a prompt and how many tokens it reuses; None if all are busy.

    It is the slot with the longest reusable prefix, and among equals the one unused for longest.
    reusable: (slot id, number of tokens) → how many of these its cache could keep.
    """
    idle = [slot for slot in slots if slot.state is SlotState.IDLE]
    if not idle:
        return None
    found = []
    for slot in idle:
        # At least one prompt token must be evaluated: its row gives the first token.
        n_common = min(common_prefix(slot.tokens, tokens), len(tokens) - 1)
        found.append((reusable(slot.id, n_common), -slot.last_used, slot))
    n_reused, _, slot = max(found, key=lambda entry: entry[:2])
    return slot, n_reused
