"""A trace of the calls of a controller, with arguments and results, and its replay.

A trace contains counts, confidences and seconds, but no tokens and no text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self, get_args

import msgspec

import specd
from specd.core import DrafterKind, PairHistory, SpeculationMode, SpeculationState
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_proposal import SiblingLimits

#: State of a drafter after a call: (drafter, why it is parked or "", its gain in the request).
Standing = tuple[str, str, float]


class Header(msgspec.Struct, frozen=True):
    """The first line of a trace: the state in which the controller started.

    specd: the version.  target_s: width → seconds; draft_step_s, catch_up_s: seconds (CostModel).
    threshold: the acceptance threshold that the user set; None is auto.
    """

    specd: str
    target_s: dict[int, float]
    draft_step_s: float
    catch_up_s: float
    threshold: float | None
    history: PairHistory | None = None
    max_draft: int | None = None

    @classmethod
    def of(
        cls,
        costs: CostModel,
        threshold: float | None,
        history: PairHistory | None,
        max_draft: int | None = None,
    ) -> Self:
        return cls(specd.__version__, *costs.measured(), threshold, history, max_draft)

    def controller(self, write: Callable[[Call], None]) -> TracingController:
        """Return a controller in the state in which the traced one started."""
        costs = CostModel(self.target_s, self.draft_step_s, self.catch_up_s)
        return TracingController(costs, self.threshold, self.history, write, self.max_draft)


# --------------------------------------------------------------------------- calls

# The tag is the method's name; the fields are its arguments, and last its result.


class _Call(msgspec.Struct, frozen=True, array_like=True):
    @classmethod
    def name(cls) -> str:
        return str(cls.__struct_config__.tag)

    @property
    def method(self) -> str:
        return self.name()


class Open(_Call, frozen=True, tag="open"):
    request_id: int
    n_max: int | None
    mode: SpeculationMode
    temperature: float
    drafters: list[str]
    standings: list[Standing]


class Close(_Call, frozen=True, tag="close"):
    request_id: int
    answer: None = None


class State(_Call, frozen=True, tag="state"):
    request_id: int
    answer: tuple[SpeculationState, str]


class Plan(_Call, frozen=True, tag="plan"):
    request_id: int
    n_missed: int
    n_slots: int
    matches: list[float]
    n_left: int
    answer: int


class Extend(_Call, frozen=True, tag="extend"):
    request_id: int
    margins: list[float]
    answer: bool


class Choose(_Call, frozen=True, tag="choose"):
    drafts: list[tuple[int, list[float]]]
    places: list[SiblingLimits]
    answer: list[tuple[str, int, list[int]]]


class ObserveSibling(_Call, frozen=True, tag="observe_sibling"):
    request_id: int
    is_right: bool
    answer: None = None


class ObservePrompt(_Call, frozen=True, tag="observe_prompt"):
    request_id: int
    seconds: float
    answer: None = None


class ObserveTarget(_Call, frozen=True, tag="observe_target"):
    width: int
    seconds: float
    answer: None = None


class ObserveDraft(_Call, frozen=True, tag="observe_draft"):
    n_steps: int
    n_missed: int
    seconds: float
    answer: None = None


class StepEstimate(msgspec.Struct, frozen=True, array_like=True):
    """The controller's estimate of a step.

    step_s: the request's share of the step.  plain_s: its share of a plain one, per token.
    """

    step_s: float
    plain_s: float
    standings: list[Standing]


class ObserveStep(_Call, frozen=True, tag="observe_step"):
    request_id: int
    sent_by: str
    n_sent: int
    n_accepted: int
    guesses: list[tuple[str, list[float], int, int]]
    estimate: StepEstimate


class Measure(_Call, frozen=True, tag="measure"):
    request_id: int
    kind: DrafterKind
    tokens: int
    seconds: float
    plain_s: float
    answer: None = None


Call = (
    Open
    | Close
    | State
    | Plan
    | Extend
    | Choose
    | ObserveSibling
    | ObservePrompt
    | ObserveTarget
    | ObserveDraft
    | ObserveStep
    | Measure
)


# --------------------------------------------------------------------------- record and replay


class TracingController(Controller):
    """A controller that passes each of its calls to `write`, after the call."""

    def __init__(
        self,
        costs: CostModel,
        threshold: float | None,
        history: PairHistory | None,
        write: Callable[[Call], None],
        max_draft: int | None = None,
    ) -> None:
        super().__init__(costs, threshold, history, max_draft)
        self._write = write

    def _result(self, record: type[Call], arguments: Sequence[Any], answer: Any) -> Any:
        """Return what the record of a call holds beyond its arguments."""
        if record is Open:
            return self._standings(arguments[0])
        if record is Choose:
            drafts = arguments[0]
            return [
                (*chosen, [*self.siblings(request_id)])
                for chosen, (request_id, _) in zip(answer, drafts, strict=True)
            ]
        if record is ObserveStep:
            control = self._requests[arguments[0]]
            step_s, plain_s = control.pass_s + control.draft_s, control.expected_gain.plain_s
            return StepEstimate(step_s, plain_s, self._standings(arguments[0]))
        return answer

    def _standings(self, request_id: int) -> list[Standing]:
        drafter_stats = self._requests[request_id].drafter_stats
        return [(kind, stats.parked, stats.speed.gain) for kind, stats in drafter_stats.items()]


def _traced(record: type[Call]) -> Callable[..., Any]:
    """Return the controller's method that the record is named after; it also writes the record."""
    method = getattr(Controller, record.name())
    signature = inspect.signature(method)
    n_arguments = len(signature.parameters) - 1

    @functools.wraps(method)
    def call_and_write(self: TracingController, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) < n_arguments:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            args = bound.args[1:]
        answer = method(self, *args)
        fields = [*args, self._result(record, args, answer)]
        # A copy: later calls change some of the lists.
        self._write(msgspec.convert([record.name(), *msgspec.to_builtins(fields)], record))
        return answer

    return call_and_write


for _record in get_args(Call):
    setattr(TracingController, _record.name(), _traced(_record))


class Replay:
    """A controller of this version that gets the same calls as the traced one."""

    def __init__(self, header: Header) -> None:
        self._calls_made: list[Call] = []
        self._controller = header.controller(self._calls_made.append)

    def find_difference(self, call: Call) -> str | None:
        """Repeat a call and return the new record of it if it differs, else None.

        Differences after the first one mean nothing, because the two states differ from then on.
        """
        *args, _ = msgspec.structs.astuple(call)
        self._calls_made.clear()
        try:
            getattr(self._controller, call.method)(*args)
        except Exception as error:  # noqa: BLE001 - an edited trace may hold impossible calls
            return f"{type(error).__name__}: {error}"
        [replayed] = self._calls_made
        # Convert before comparing: in a trace an enum is its text and a tuple is a list.
        if msgspec.convert(msgspec.to_builtins(replayed), type(call)) == call:
            return None
        return encode(replayed).decode()


def encode(line: Header | Call) -> bytes:
    """Return one line of a trace as JSON, without the newline."""
    return msgspec.json.encode(line)


_calls: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)


def decode(line: bytes) -> Call:
    """Return the call in one line of a trace.  Raises msgspec.MsgspecError."""
    return _calls.decode(line)


def decode_header(line: bytes) -> Header:
    """Return the header in the first line of a trace.  Raises msgspec.MsgspecError."""
    return msgspec.json.decode(line, type=Header)
