"""A record of everything the controller was told and answered, and its replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from specd.core import SpeculationMode, SpeculationState
from specd.engine.speculative.controller import Controller


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a public method of the controller, with its answer."""

    method: str
    args: list[Any]
    answer: Any = None


class TracingController(Controller):
    """A controller that writes down its calls; the trace is a list that anyone may read."""

    trace: list[Call]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trace = []

    def _traced(self, method: str, *args: Any) -> Any:
        answer = getattr(super(), method)(*args)
        # Lists grow after the call: write down what was said, not what it became.
        said = [list(a) if isinstance(a, list) else a for a in args]
        self.trace.append(Call(method, said, answer))
        return answer

    def open(
        self, request_id: int, n_max: int | None, mode: SpeculationMode, temperature: float
    ) -> None:
        self._traced("open", request_id, n_max, mode, temperature)

    def close(self, request_id: int) -> None:
        self._traced("close", request_id)

    def state(self, request_id: int) -> tuple[SpeculationState, str]:
        state, reason = self._traced("state", request_id)
        return state, reason

    def plan(self, request_id: int, n_missed: int, n_others: int, other_rows: int) -> int:
        return int(self._traced("plan", request_id, n_missed, n_others, other_rows))

    def extend(self, request_id: int, margins: list[float]) -> bool:
        return bool(self._traced("extend", request_id, margins))

    def choose(self, request_id: int, margins: list[float]) -> int:
        return int(self._traced("choose", request_id, margins))

    def observe_target(self, width: int, seconds: float) -> None:
        self._traced("observe_target", width, seconds)

    def observe_draft(self, n_steps: int, n_missed: int, seconds: float) -> None:
        self._traced("observe_draft", n_steps, n_missed, seconds)

    def observe_step(
        self, request_id: int, margins: list[float], n_sent: int, n_accepted: int
    ) -> None:
        self._traced("observe_step", request_id, margins, n_sent, n_accepted)


def replay(trace: Iterable[Call], controller: Controller) -> int | None:
    """Index of the first call that this controller answers differently, or None."""
    for index, call in enumerate(trace):
        args = [
            SpeculationMode(a) if call.method == "open" and i == 2 else a
            for i, a in enumerate(call.args)
        ]
        answer = getattr(controller, call.method)(*args)
        if msgspec.to_builtins(answer) != msgspec.to_builtins(call.answer):
            return index
    return None
