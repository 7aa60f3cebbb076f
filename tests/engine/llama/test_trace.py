"""Decisions of a real run, replayed without a model."""

from __future__ import annotations

import json

import msgspec

from specd.core import EngineSpec, SpeculationMode
from specd.engine import pair
from specd.engine.speculative.controller import MODEL
from specd.engine.speculative.trace import Trace, TracingController
from specd.engine.worker import make_loop
from specd.ipc.messages import ToDaemon
from tests.engine.llama.conftest import DRAFTER, TARGET, request


def test_a_recorded_run_replays_its_decisions() -> None:
    spec = EngineSpec(weights=str(TARGET), drafter=str(DRAFTER), n_threads=1, n_ctx=512)
    loaded = pair.load(spec, lambda _: None)
    controller = TracingController(loaded.costs, spec.acceptance_threshold)
    said: list[ToDaemon] = []
    loop = make_loop(spec, loaded, said.append, controller)
    for at, mode in enumerate((SpeculationMode.AUTO, SpeculationMode.FIXED, SpeculationMode.AUTO)):
        n_max = 3 if mode is SpeculationMode.FIXED else None
        loop.submit(at, request("class Node:\n", seed=at, mode=mode, n_draft_max=n_max))
        while loop.busy:
            loop.step()
    trace = controller.trace
    methods = {call.method for call in trace.calls}
    assert {"open", "plan", "extend", "choose", "observe_step", "observe_target"} <= methods
    # Through the form it is kept in, so that a trace from a user's machine replays as well.
    kept = msgspec.json.decode(msgspec.json.encode(trace), type=Trace)
    assert kept.first_difference() is None


def test_a_trace_that_was_tampered_with_does_not_replay() -> None:
    trace = Trace({1: 1.0, 4: 2.0}, 0.1, 0.01, 0.4, [])
    controller = TracingController(trace.controller().costs, 0.4)
    controller.open(1, None, SpeculationMode.AUTO, 0.8, [MODEL])
    controller.plan(1, 0, 1)
    controller.extend(1, [2.0])
    kept = json.loads(msgspec.json.encode(controller.trace))
    kept["calls"][1][2] = 99
    assert msgspec.convert(kept, Trace, strict=False).first_difference() == 1
