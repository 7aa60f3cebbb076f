"""A record of everything the controller was told and answered, and its replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from specd.core import PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.controller import Controller, Guess
from specd.engine.speculative.cost_model import CostModel


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a public method of the controller, with its answer."""

    method: str
    args: list[Any]
    answer: Any = None


class Trace(msgspec.Struct, frozen=True):
    """What a controller started from, and every call since.

    target_s: width → seconds; draft_step_s, catch_up_s: seconds (see CostModel).
    """

    target_s: dict[int, float]
    draft_step_s: float
    catch_up_s: float
    threshold: float
    calls: list[Call]
    history: PairHistory | None = None

    def controller(self) -> Controller:
        """A controller in the state that the traced one began in."""
        costs = CostModel(self.target_s, self.draft_step_s, self.catch_up_s)
        return Controller(costs, self.threshold, self.history)

    def first_difference(self) -> int | None:
        """Index of the first call that a controller of today answers differently, or None."""
        controller = self.controller()
        for index, call in enumerate(self.calls):
            args = list(call.args)
            if call.method == "open":
                args[2] = SpeculationMode(args[2])
            answer = getattr(controller, call.method)(*args)
            # Compared as they are kept: an enum is its text there, a tuple is a list.
            if msgspec.json.encode(answer) != msgspec.json.encode(call.answer):
                return index
        return None


class TracingController(Controller):
    """A controller that writes down its calls."""

    def __init__(
        self, costs: CostModel, threshold: float, history: PairHistory | None = None
    ) -> None:
        super().__init__(costs, threshold, history)
        self.trace = Trace(*costs.measured(), threshold=threshold, calls=[], history=history)

    def _traced(self, method: str, *args: Any) -> Any:
        answer = getattr(super(), method)(*args)
        # Lists grow after the call: write down what was said, not what it became.
        said = [list(a) if isinstance(a, list | tuple) else a for a in args]
        self.trace.calls.append(Call(method, said, answer))
        return answer

    def open(
        self,
        request_id: int,
        n_max: int | None,
        mode: SpeculationMode,
        temperature: float,
        drafters: Sequence[str],
    ) -> None:
        self._traced("open", request_id, n_max, mode, temperature, drafters)

    def close(self, request_id: int) -> None:
        self._traced("close", request_id)

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        state, reason = self._traced("state", request_id)
        return state, reason

    def plan(
        self, request_id: int, n_missed: int, n_slots: int, matches: Sequence[float] = ()
    ) -> int:
        return int(self._traced("plan", request_id, n_missed, n_slots, matches))

    def extend(self, request_id: int, margins: Sequence[float]) -> bool:
        return bool(self._traced("extend", request_id, margins))

    def choose(self, drafts: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[str, int]]:
        return list(self._traced("choose", drafts))

    def observe_target(self, width: int, seconds: float) -> None:
        self._traced("observe_target", width, seconds)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        self._traced("observe_draft", n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        self._traced("observe_step", request_id, sent_by, n_sent, n_accepted, guesses)
