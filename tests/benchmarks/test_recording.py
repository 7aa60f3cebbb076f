"""Test that a recording matches the engine, with real weights and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gguf import GGUFReader

from benchmarks.simulator.curves import curve
from benchmarks.simulator.engine import SimulatedEngine, SimulatedRequest
from benchmarks.simulator.noisy_drafter import add_weight_noise
from benchmarks.simulator.recording import Recording
from benchmarks.simulator.trace import Answer, Trace
from specd.core import Done, DrafterKind, SpeculationMode
from specd.engine.speculative.controller import MAX_DRAFT, MODEL, Controller, Guess
from tests.engine.llama.conftest import BATCH_INVARIANT, DRAFTER, TARGET, Engine, load

N_TOKENS = 120
#: Tokens that are compared; later drafts reach the end of the recording.
N_COMPARED = N_TOKENS - MAX_DRAFT - 1


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """Return a recording of one answer at a time, so that the passes are those of a single slot."""
    recording = Recording(
        target=TARGET,
        drafter=DRAFTER,
        name="demo",
        kinds=("code_completion", "edit"),
        n_answers=1,
        n_tokens=N_TOKENS,
        n_slots=1,
    )
    return recording.run()


@pytest.fixture(scope="module")
def real() -> Engine:
    return load(TARGET, DRAFTER, n_ctx=1024, **BATCH_INVARIANT)


class Observed(NamedTuple):
    """One step: its position, the tokens sent and accepted, and all guesses with their outcomes."""

    at: int
    sent_by: str
    n_sent: int
    n_accepted: int
    guesses: list[tuple[str, tuple[float, ...], int, int]]


class Watch:
    """Records every step that a controller observes."""

    def __init__(self, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Observed] = []
        self._at = 1
        self._observe = controller.observe_step
        monkeypatch.setattr(controller, "observe_step", self._note)

    def _note(
        self, request_id: int, sent_by: str, n_sent: int, n_accepted: int, guesses: Sequence[Guess]
    ) -> None:
        found = [
            (kind, _rounded_down(sure), n_right, n_judged)
            for kind, sure, n_right, n_judged in guesses
        ]
        self.steps.append(Observed(self._at, sent_by, n_sent, n_accepted, found))
        self._at += n_accepted + 1
        self._observe(request_id, sent_by, n_sent, n_accepted, guesses)

    def compared(self) -> Iterator[Observed]:
        return (step for step in self.steps if step.at < N_COMPARED)


def _rounded_down(margins: Sequence[float]) -> tuple[float, ...]:
    """Return margins in thousandths, rounded down as in a trace."""
    return tuple(float(np.floor(np.float64(margin) * 1000 + 1e-6)) for margin in margins)


def answers(recorded: Trace) -> list[Answer]:
    assert [a.temperature for a in recorded.answers] == [0.0, 0.0, 0.8, 0.8]
    assert all(len(a.tokens) == N_TOKENS for a in recorded.answers)
    return [*recorded.answers]


@pytest.mark.native
@pytest.mark.parametrize("length", [1, 4, MAX_DRAFT])
@pytest.mark.parametrize("drafter", DrafterKind)
def test_the_simulated_engine_drafts_and_accepts_as_the_real_one(
    recorded: Trace,
    real: Engine,
    drafter: DrafterKind,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare tokens, margins and accepted counts."""
    controller = real.loop.speculation.controller
    for answer in answers(recorded):
        with monkeypatch.context() as patched:
            watch = Watch(controller, patched)
            _, done = real.answer(
                tuple(answer.prompt),
                add_bos=False,
                seed=answer.seed,
                temperature=answer.temperature,
                n_predict=N_TOKENS,
                n_draft_max=length,
                mode=SpeculationMode.FIXED,
                drafters=(drafter,),
                want_context=True,
            )
        assert [*done.context] == [*answer.prompt, *answer.tokens]
        simulated = SimulatedEngine(curve("gpu-cheap"))
        again = Watch(simulated.controller, monkeypatch)
        mode = SpeculationMode.FIXED
        simulated.answer(SimulatedRequest(answer, N_TOKENS, length, mode, (drafter,)))
        assert [*watch.compared()] == [*again.compared()]
        if drafter == MODEL:
            assert any(step.n_accepted for step in watch.compared())


@pytest.mark.native
def test_a_trace_names_its_sources(recorded: Trace) -> None:
    assert recorded.provenance["target"]["file"] == "target.gguf"
    assert len(recorded.provenance["drafter"]["sha256"]) == 64
    assert {a.kind for a in recorded.answers} == {"code_completion", "edit"}
    assert recorded.first_right(0.0) > 0.7
    assert 0.1 < recorded.second_right(0.8) < 0.9


@pytest.mark.native
def test_noise_makes_a_drafter_worse(
    recorded: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bad = add_weight_noise(DRAFTER, 0.6)
    assert bad.stat().st_size == DRAFTER.stat().st_size
    ours, theirs = (
        {tensor.name: tensor.data.copy() for tensor in GGUFReader(path).tensors}
        for path in (DRAFTER, bad)
    )
    changed = {name for name in ours if not np.array_equal(ours[name], theirs[name])}
    assert changed == {n for n, data in ours.items() if n.startswith("blk.") and data.ndim > 1}
    guessed = Recording(
        target=TARGET,
        drafter=bad,
        name="bad",
        kinds=("code_completion",),
        temperatures=(0.8,),
        n_answers=1,
        n_tokens=60,
        n_slots=2,
    ).run()
    assert guessed.first_right(0.8) < 0.5 < recorded.first_right(0.8)


@pytest.mark.native
def test_a_recorded_answer_equals_the_targets_own(recorded: Trace) -> None:
    one = recorded.answers[-1]
    # As it was recorded: another context could round differently.
    engine = load(TARGET, DRAFTER, n_ctx=1536, n_threads=1, flash_attention=True)
    _, done = engine.answer(
        tuple(one.prompt),
        add_bos=False,
        seed=one.seed,
        temperature=0.8,
        n_predict=N_TOKENS,
        n_draft_max=0,
        want_context=True,
    )
    assert isinstance(done, Done)
    assert [*done.context] == [*one.prompt, *one.tokens]
