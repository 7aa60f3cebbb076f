"""Decisions of a real run, traced and replayed without a model."""

from __future__ import annotations

from pathlib import Path

from specd.core import EngineSpec, SpeculationMode
from specd.engine import loader
from specd.engine.speculative.trace import ObserveStep, Open, Plan, Replay
from specd.engine.trace import TraceReader
from specd.engine.worker import make_controller, make_loop
from specd.ipc.messages import ToDaemon
from tests.engine.llama.conftest import DRAFTER, TARGET, request

PROMPT = "class Node:\n"


def test_a_recorded_run_replays_its_decisions(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    spec = EngineSpec(
        weights=str(TARGET),
        drafter=str(DRAFTER),
        n_threads=1,
        n_ctx=512,
        n_slots=2,
        trace_dir=str(folder),
        max_draft=5,
    )
    loaded = loader.load_pair(spec, lambda _: None)
    said: list[ToDaemon] = []
    modes = (SpeculationMode.AUTO, SpeculationMode.FIXED, SpeculationMode.AUTO)
    with make_controller(spec, loaded, None) as controller:
        loop = make_loop(spec, loaded, said.append, controller)
        for at, mode in enumerate(modes):
            n_max = 3 if mode is SpeculationMode.FIXED else None
            loop.submit(at, request(PROMPT, seed=at, mode=mode, n_draft_max=n_max))
        while loop.is_busy:
            loop.step()
        # Before it is closed: the last request's end has reached the disk with all before it.
        [path] = folder.iterdir()
        content = path.read_bytes()
    assert path.name.startswith("target-")
    assert PROMPT.strip().encode() not in content
    assert content.endswith(b'["close",2,null]\n')
    with path.open("rb") as file:
        reader = TraceReader(file)
        replay = Replay(reader.header)
        calls = [call for _, call in reader.calls()]
    assert reader.end == ""
    assert [replay.find_difference(call) for call in calls] == [None] * len(calls)
    methods = {call.method for call in calls}
    assert {"plan", "extend", "choose", "observe_draft", "observe_target", "state"} <= methods
    assert [call.mode for call in calls if isinstance(call, Open)] == [*modes]
    assert 1 <= max(call.answer for call in calls if isinstance(call, Plan)) <= 5
    assert any(call.n_accepted for call in calls if isinstance(call, ObserveStep))
