"""What is known of the memory for the next load: one question at a time, and what was refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from specd import core, errors
from specd.scheduler.effects import Effect, Place
from specd.scheduler.runner_ref import RunnerRef

#: Loads of one model that may find no memory; the last one has the machine to itself.
MAX_REFUSALS = 4


class PlacementQuery:
    """Where the next model would lie: asked once for each state of the machine.

    A question is the same when only what may be given up differs: engines that become busy and
    idle all the time must not keep the answer from counting.
    """

    def __init__(self) -> None:
        self._question: Place | None = None
        self._is_open = False
        self._allowed_give_up = core.GiveUp.NOTHING  # be given up, as things are now
        self._found: core.Placement | None = None  # where it fits
        self._found_give_up = core.GiveUp.NOTHING  # so much may be given up for it
        self._full_give_up: core.GiveUp | None = None  # giving up so much does not make it fit

    @property
    def must_evict(self) -> bool:
        """Somebody has to leave first, as far as is known."""
        return self._full_give_up is not None

    @property
    def placement(self) -> core.Placement | None:
        """Where it fits.  No drafter is given up once somebody is idle, who can leave for it."""
        found, question = self._found, self._question
        if found is None or question is None or self._found_give_up <= self._allowed_give_up:
            return found
        wanted = question.request.spec.drafter
        return found if found.spec.drafter == wanted else None

    def ask(self, question: Place) -> list[Effect]:
        """The question, where its answer is neither known nor awaited."""
        self._allowed_give_up = question.request.give_up
        if self._question is None or _comparable_query(self._question) != _comparable_query(
            question
        ):
            self._is_open, self._found, self._full_give_up = False, None, None
        elif self._knows():
            return []
        self._question, self._is_open = question, True
        return [question]

    def _knows(self) -> bool:
        if self._is_open or self.placement is not None:
            return True
        return self._full_give_up is not None and self._full_give_up >= self._allowed_give_up

    def answer(self, question: Place, placement: core.Placement) -> None:
        """One that is not asked any more is dropped; the first model is always tried."""
        if not self._is_open or question != self._question:
            return
        self._is_open = False
        if placement.fits or question.request.give_up is core.GiveUp.ANYTHING:
            self._found, self._found_give_up = placement, question.request.give_up
        else:
            self._full_give_up = question.request.give_up


def _comparable_query(question: Place) -> Place:
    return replace(question, request=replace(question.request, give_up=core.GiveUp.NOTHING))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLoad:
    """A load that found no memory.  n: how many in a row, n_alone: of these with nobody beside it.

    beside: the runners that were there.
    """

    n: int
    n_refused_alone: int
    runner: RunnerRef
    residents: frozenset[int]
    error: errors.OutOfMemory

    @property
    def is_final(self) -> bool:
        return self.n >= MAX_REFUSALS

    @property
    def must_load_alone(self) -> bool:
        return self.n >= MAX_REFUSALS - 1

    def can_retry(self, spec: core.EngineSpec, others: Collection[RunnerRef]) -> bool:
        """Whether to load `spec` were to try the very same once more."""
        has_more_room = {runner.id for runner in others} < self.residents
        return _load_settings(spec) == _load_settings(self.runner.spec) and not has_more_room


def _load_settings(spec: core.EngineSpec) -> core.EngineSpec:
    """Without what is only said: the figures of a sentence are others each time."""
    return replace(spec, drafter_name="", pair_source="", no_pair_reason="", no_pair_detail="")
