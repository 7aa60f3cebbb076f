"""The search for a placement of the next load, and loads that were refused memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from specd import core, errors
from specd.scheduler.effects import Effect, Place
from specd.scheduler.runner_ref import RunnerRef

#: Loads of one model that may find no memory; the last one has the machine to itself.
MAX_REFUSALS = 4


class PlacementQuery:
    """The placement of the next model, queried once for each state of the machine.

    Two queries that differ only in `give_up` count as the same: otherwise engines that become busy
    and idle all the time would make every answer outdated.
    """

    def __init__(self) -> None:
        self._question: Place | None = None
        self._is_open = False
        self._allowed_give_up = core.GiveUp.NOTHING  # in the latest query
        self._found: core.Placement | None = None  # a placement that fits
        self._found_give_up = core.GiveUp.NOTHING  # the query's, that led to `_found`
        self._full_give_up: core.GiveUp | None = None  # the query's, that found no placement

    @property
    def must_evict(self) -> bool:
        """Whether another model has to be unloaded first, as far as is known."""
        return self._full_give_up is not None

    @property
    def placement(self) -> core.Placement | None:
        """The placement that fits, or None.

        A placement without drafter does not count once an idle model could be unloaded instead.
        """
        found, question = self._found, self._question
        if found is None or question is None or self._found_give_up <= self._allowed_give_up:
            return found
        wanted = question.request.spec.drafter
        return found if found.spec.drafter == wanted else None

    def ask(self, question: Place) -> list[Effect]:
        """Return the question as an effect if its answer is neither known nor awaited."""
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
        """Take an answer; drop it if its question is outdated.

        With GiveUp.ANYTHING the placement is used even if it does not fit.
        """
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
    """A load that was refused memory.

    n: refusals in a row.  n_refused_alone: those with no other model loaded.
    residents: ids of the other runners at that time.
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

    def would_repeat(self, spec: core.EngineSpec, others: Collection[RunnerRef]) -> bool:
        """Return whether loading `spec` now would repeat the refused load unchanged."""
        has_more_room = {runner.id for runner in others} < self.residents
        return _load_settings(spec) == _load_settings(self.runner.local_spec) and not has_more_room


def _load_settings(spec: core.EngineSpec) -> core.EngineSpec:
    """Return the spec without texts for the user, whose figures change each time."""
    return replace(spec, drafter_name="", pair_source="", no_pair_reason="", no_pair_detail="")
