"""Run the engine's own loop over recorded answers, with a clock that only stated costs advance.

Loop, Speculation, Controller, DraftModel and PromptLookup are the real ones.  Only the parts that
need a model are replaced.  The two backends charge the cost of their passes.  The sampler returns
the recorded tokens of the target and the recorded guesses of the drafter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.simulator.curves import PLAIN_NS, Curve
from benchmarks.simulator.time_shares import TimeShare, TimeShares
from benchmarks.simulator.trace import Answer
from specd.core import (
    Done,
    DrafterKind,
    EngineRequest,
    ModelMemory,
    PairHistory,
    SamplingParams,
    SpeculationMode,
    TokenId,
)
from specd.engine.backend import Batch
from specd.engine.calibration import calibrate
from specd.engine.loop import Loop
from specd.engine.media import Media
from specd.engine.sampler import CERTAIN, NO_TOKEN, Choice, Row
from specd.engine.speculative.controller import MAX_DRAFT, Controller
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftModel
from specd.engine.speculative.draft_proposal import MAX_SIBLINGS
from specd.errors import EngineError
from specd.ipc.messages import Finished, Started, ToDaemon
from specd.settings import Settings

#: Ids that no recorded text has: the end of an answer, a wrong guess, a wrong guess that ends its
#: draft, and a wrong second-best guess.
_END, _WRONG, _WRONG_END, _WRONG_SECOND = range(2**30, 2**30 + 4)
_N_VOCAB = 2**30 + 4
_N_CTX = 8192
#: The margin of a very confident guess.
_SURE = 8.0
_NO_ROW: Row = np.zeros(1, dtype=np.float32)

#: The part of its plain time that an answer may take before the excess is counted.
ALLOWED_SHARE = 1.05

BOTH = (DrafterKind.MODEL, DrafterKind.LOOKUP)


@cache
def default_threshold() -> float | None:
    """Return the acceptance threshold of a daemon with default settings; None is auto."""
    return Settings.of({}).acceptance_threshold


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request for the first `end` tokens of a recorded answer; the last stands for its end.

    n_draft_max, mode: as in a request.
    adversary: None for recorded guesses.  (n, m): guesses are right until n drafts were sent, then
    wrong until m steps had no draft.
    """

    answer: Answer
    end: int
    n_draft_max: int | None = None
    mode: SpeculationMode = SpeculationMode.AUTO
    drafters: Sequence[DrafterKind] = BOTH
    adversary: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """The result of a request.  share: its part of the passes that it took part in."""

    asked: SimulatedRequest
    done: Done
    share: TimeShare

    @property
    def ns(self) -> int:
        """Return the nanoseconds from the first token to the last."""
        return self.done.usage.generate_ns

    @property
    def excess(self) -> float:
        """Return the time beyond ALLOWED_SHARE of plain decoding, in plain passes.

        The prompt takes as long in both, so the pass that gives the first token is not counted.
        """
        share = self.share
        prompt_ns = max(self.done.usage.prompt_ns - PLAIN_NS, 0)
        lost_ns = share.taken_ns + prompt_ns - ALLOWED_SHARE * (share.plain_ns + prompt_ns)
        return lost_ns / share.plain_pass_ns


def plain_ns(end: int) -> int:
    """Return the nanoseconds of plain decoding for n tokens; the prompt's pass gives the first."""
    return (end - 1) * PLAIN_NS


class _Clock:
    """Nanoseconds of simulated time.  noise: standard deviation of the logarithm of each cost."""

    def __init__(self, noise: float, seed: int) -> None:
        self.now_ns = 0
        self._noise = noise
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, no secret

    def __call__(self) -> int:
        return self.now_ns

    def spend(self, ns: int) -> None:
        if self._noise:
            ns = round(ns * math.exp(self._chance.gauss(0.0, self._noise)))
        self.now_ns += ns


class _Backend:
    """A model that computes nothing and charges the cost of its passes."""

    n_vocab = _N_VOCAB
    n_batch = 512
    can_shift = True
    rewind_limit: int | None = None
    has_equal_splits = False
    n_leaves = 0

    def __init__(self, curve: Curve, clock: _Clock, shares: TimeShares) -> None:
        self._curve = curve
        self._clock = clock
        self._shares = shares

    def decode(self, batch: Batch) -> None:
        raise NotImplementedError

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        raise NotImplementedError

    def row(self, index: int) -> Row:  # noqa: ARG002 - the sampler knows the tokens
        return _NO_ROW

    def reusable(self, slot: int, n_past: int) -> int:  # noqa: ARG002 - every prompt is new
        return 0

    def rewind(self, slot: int, n_past: int) -> int:  # noqa: ARG002 - nothing is held
        return n_past

    def checkpoint(self, slot: int) -> None:
        pass

    def shift(self, slot: int, n_keep: int, n_discard: int) -> None:
        pass

    def memory(self) -> ModelMemory:
        return ModelMemory(device="simulated", total_bytes=0, vram_bytes=0)

    def close(self) -> None:
        pass


class _Target(_Backend):
    """A target whose prompts cost only their last row: prompt reading is not judged."""

    def __init__(self, curve: Curve, clock: _Clock, shares: TimeShares, n_leaves: int = 0) -> None:
        super().__init__(curve, clock, shares)
        self.n_leaves = n_leaves
        self._target_ns = cache(curve.target_ns)

    def decode(self, batch: Batch) -> None:
        width = self._shares.add_target_pass(batch)
        self._clock.spend(self._target_ns(max(width, 1)))


class _Drafter(_Backend):
    """A drafter.  The last rows of several slots share a pass; each earlier row is charged."""

    def decode(self, batch: Batch) -> None:
        self._shares.add_drafter_pass(batch)
        ends = zip(batch.slots, batch.wants_logits, strict=True)
        n_free = len({slot for slot, wants in ends if wants})
        self._clock.spend(self._curve.draft_ns(1, len(batch) - n_free))


class _Vocabulary:
    n_vocab = _N_VOCAB

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        raise NotImplementedError

    def piece(self, token: TokenId) -> bytes:  # noqa: ARG002
        return b""

    def spelling(self, token: TokenId) -> bytes:  # noqa: ARG002
        return b""

    def is_eog(self, token: TokenId) -> bool:
        return token in (_END, _WRONG_END)

    def begins_with_bos(self) -> bool:
        return False


class _Sampler:
    """Return recorded tokens: the target's own text and the drafter's guesses."""

    reads_history = False

    def __init__(self, asked: SimulatedRequest, share: TimeShare) -> None:
        self._answer, self._end, self._share = asked.answer, asked.end, share
        self._begin, self._n_right, self._margins = -1, 0, list[float]()

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:  # noqa: ARG002
        self._share.add_token()
        return self._token(position)

    def _token(self, position: int) -> TokenId:
        return _END if position == self._end - 1 else self._answer.tokens[position]

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:  # noqa: ARG002
        """Return a guess.  history: prompt and answer, without the tokens drafted after them."""
        begin = len(history) - len(self._answer.prompt)
        if begin != self._begin:
            self._begin = begin
            self._n_right, self._margins = self._draft(begin)
        depth = position - begin
        margin = self._margins[depth]
        second = _WRONG_SECOND if margin < CERTAIN else NO_TOKEN
        if depth < self._n_right:
            return Choice(self._token(position), margin, second)
        if depth == self._n_right and self._is_second_right(position):
            second = self._token(position)
        ends = depth == len(self._margins) - 1 and len(self._margins) < MAX_DRAFT
        return Choice(_WRONG_END if ends else _WRONG, margin, second)

    def _draft(self, begin: int) -> tuple[int, list[float]]:
        """Return how many guesses from there on are right, and the margins of the longest draft."""
        return self._answer.draft(begin, self._end)

    def _is_second_right(self, position: int) -> bool:
        return self._answer.second_right[position]


class _Adversary(_Sampler):
    """A drafter that guesses right until the controller trusts it, then wrong until it does not."""

    def __init__(
        self, asked: SimulatedRequest, share: TimeShare, n_kept: int, n_broken: int
    ) -> None:
        super().__init__(asked, share)
        self._n_kept, self._n_broken = n_kept, n_broken
        self._n_sent = self._n_unsent = 0

    def _draft(self, begin: int) -> tuple[int, list[float]]:
        if self._share.n_sent:
            self._n_sent, self._n_unsent = self._n_sent + 1, 0
        else:
            self._n_unsent += 1
            if self._n_unsent >= self._n_broken:
                self._n_sent = 0
        n = min(MAX_DRAFT, self._end - begin)
        return (n, [_SURE] * n) if self._n_sent <= self._n_kept else (0, [_SURE] * MAX_DRAFT)

    def _is_second_right(self, position: int) -> bool:  # noqa: ARG002
        return False


class SimulatedEngine:
    """An engine that has just loaded its pair and measured the costs of passes."""

    def __init__(
        self,
        curve: Curve,
        *,
        n_slots: int = 1,
        threshold: float | None = None,
        history: PairHistory | None = None,
        noise: float = 0.0,
        seed: int = 0,
        n_leaves: int = MAX_SIBLINGS,
    ) -> None:
        """Start the engine.

        threshold: None is the default setting.  history: from an earlier engine of the pair.
        noise: standard deviation of the logarithm of every cost.  n_leaves: most siblings of a
        draft.
        """
        self._clock = _Clock(noise, seed)
        self._shares = TimeShares(curve)
        target = _Target(curve, self._clock, self._shares, n_leaves)
        drafter = _Drafter(curve, self._clock, self._shares)
        costs = _measured(curve) if not noise else _calibrated(target, drafter, self._clock)
        threshold = default_threshold() if threshold is None else threshold
        self.controller = Controller(costs, threshold, history)
        self._asked: dict[int, SimulatedRequest] = {}
        self._ends: dict[int, object] = {}
        self._share_of: dict[int, TimeShare] = {}
        self._n_asked = 0
        self._loop = Loop(
            target,
            _Vocabulary(),
            self.controller,
            self._on_message,
            n_ctx=_N_CTX,
            n_slots=n_slots,
            drafter=DraftModel(drafter, _Vocabulary(), n_slots, self._clock),
            clock_ns=self._clock,
        )

    @property
    def now_ns(self) -> int:
        """Return the simulated time so far, in nanoseconds."""
        return self._clock.now_ns

    def answer(self, asked: SimulatedRequest) -> SimulatedAnswer:
        """Answer one request that runs alone."""
        return self.answer_all([asked])[0]

    def answer_all(self, several: Sequence[SimulatedRequest]) -> list[SimulatedAnswer]:
        """Answer requests that arrive together, as many at a time as there are slots."""
        first = self._n_asked
        for asked in several:
            self._asked[self._n_asked] = asked
            self._loop.submit(self._n_asked, _request(asked))
            self._n_asked += 1
        while self._loop.is_busy:
            self._loop.step()
        return [
            _answered(self._asked.pop(i), self._ends.pop(i), self._share_of.pop(i))
            for i in range(first, self._n_asked)
        ]

    def _on_message(self, message: ToDaemon) -> None:
        """Give a starting request the sampler of its recorded answer; store the end of a finished
        one.
        """
        if isinstance(message, Started):
            [slot] = (s for s in self._loop.slots if s.request_id == message.request_id)
            share = self._share_of[message.request_id] = self._shares.open(slot.id)
            slot.sampler = _sampler(self._asked[message.request_id], share)
        elif isinstance(message, Finished):
            self._ends[message.request_id] = message.event


def _sampler(asked: SimulatedRequest, share: TimeShare) -> _Sampler:
    return _Adversary(asked, share, *asked.adversary) if asked.adversary else _Sampler(asked, share)


def _request(asked: SimulatedRequest) -> EngineRequest:
    answer = asked.answer
    return EngineRequest(
        prompt=tuple(answer.prompt),
        sampling=SamplingParams(temperature=answer.temperature, seed=answer.seed),
        add_bos=False,
        n_draft_max=asked.n_draft_max,
        mode=asked.mode,
        drafters=tuple(asked.drafters),
    )


def _answered(asked: SimulatedRequest, end: object, share: TimeShare) -> SimulatedAnswer:
    if not isinstance(end, Done):
        raise EngineError(f"the simulated engine gave no answer: {end}")
    return SimulatedAnswer(asked, end, share)


def _calibrated(target: _Target, drafter: _Drafter, clock: _Clock) -> CostModel:
    """Return the costs that the engine measures when it loads the pair."""
    return calibrate(target, drafter, longest=MAX_DRAFT, clock=lambda: clock.now_ns * 1e-9)


def _measured(curve: Curve) -> CostModel:
    """Return the costs without noise, measured once per curve."""
    if curve.name not in _KNOWN:
        clock, shares = _Clock(0.0, 0), TimeShares(curve)
        _KNOWN[curve.name] = _calibrated(
            _Target(curve, clock, shares), _Drafter(curve, clock, shares), clock
        )
    return CostModel(*_KNOWN[curve.name].measured())


_KNOWN: dict[str, CostModel] = {}
