"""What is known of the memory for the next load: one question at a time, and what was refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from specd import core, errors
from specd.scheduler.effects import Effect, Place
from specd.scheduler.runner import Runner

#: Loads of one model that may find no memory; the last one has the machine to itself.
MAX_REFUSALS = 4


class Inquiry:
    """Where the next model would lie: asked once for each state of the machine.

    A question is the same when only what may be given up differs: engines that become busy and
    idle all the time must not keep the answer from counting.
    """

    def __init__(self) -> None:
        self._question: Place | None = None
        self._is_open = False
        self._may = core.GiveUp.NOTHING  # be given up, as things are now
        self._found: core.Placement | None = None  # where it fits
        self._found_at = core.GiveUp.NOTHING  # so much may be given up for it
        self._full_at: core.GiveUp | None = None  # giving up so much does not make it fit

    @property
    def is_full(self) -> bool:
        """Somebody has to leave first, as far as is known."""
        return self._full_at is not None

    @property
    def placement(self) -> core.Placement | None:
        """Where it fits.  No drafter is given up once somebody is idle, who can leave for it."""
        found, question = self._found, self._question
        if found is None or question is None or self._found_at <= self._may:
            return found
        wanted = question.request.spec.drafter
        return found if found.spec.drafter == wanted else None

    def put(self, question: Place) -> list[Effect]:
        """The question, where its answer is neither known nor awaited."""
        self._may = question.request.give_up
        if self._question is None or _essence(self._question) != _essence(question):
            self._is_open, self._found, self._full_at = False, None, None
        elif self._knows():
            return []
        self._question, self._is_open = question, True
        return [question]

    def _knows(self) -> bool:
        if self._is_open or self.placement is not None:
            return True
        return self._full_at is not None and self._full_at >= self._may

    def answer(self, question: Place, placement: core.Placement) -> None:
        """One that is not asked any more is dropped; the first model is always tried."""
        if not self._is_open or question != self._question:
            return
        self._is_open = False
        if placement.fits or question.request.give_up is core.GiveUp.ANYTHING:
            self._found, self._found_at = placement, question.request.give_up
        else:
            self._full_at = question.request.give_up


def _essence(question: Place) -> Place:
    return replace(question, request=replace(question.request, give_up=core.GiveUp.NOTHING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A load that found no memory.  n: how many in a row, n_alone: of these with nobody beside it.

    beside: the runners that were there.
    """

    n: int
    n_alone: int
    runner: Runner
    beside: frozenset[int]
    error: errors.OutOfMemory

    @property
    def is_final(self) -> bool:
        return self.n >= MAX_REFUSALS

    @property
    def next_is_alone(self) -> bool:
        return self.n >= MAX_REFUSALS - 1

    def again(self, spec: core.EngineSpec, others: Collection[Runner]) -> bool:
        """Whether to load `spec` were to try the very same once more."""
        has_more_room = {runner.id for runner in others} < self.beside
        return _what_loads(spec) == _what_loads(self.runner.spec) and not has_more_room


def _what_loads(spec: core.EngineSpec) -> core.EngineSpec:
    """Without what is only said: the figures of a sentence are others each time."""
    return replace(spec, drafter_name="", pair_source="", no_pair_reason="", no_pair_detail="")
