"""Check that two daemons with a shared history always retry a drafter that lost, in time."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specd.core import BandHistory, DrafterKind, PairHistory
from specd.pairs import History, HistoryKey, file_identity
from specd.pairs import history as history_module
from specd.pairs.verdict import MIN_DRAFTED, MIN_REQUESTS, PairOutcome, Verdict, Verdicts

#: Small, so that a few steps cause several retries.
WAIT: Final = 6
WAITS: Final = (WAIT, 2 * WAIT, 4 * WAIT)

daemons = st.integers(0, 1)


class Daemons(RuleBasedStateMachine):
    """Two daemons over one file, with one target and one drafter."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(history_module, "FIRST_WAIT", WAIT)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        #: Number of answers without the drafter, by the number of earlier retries.
        self.answered: Counter[int] = Counter()

    @initialize()
    def start(self) -> None:
        for name in "td":
            (self.path / name).write_text(name)
        target, drafter = (file_identity(self.path / name) for name in "td")
        self.key = HistoryKey(target, drafter, "f16", None, -1, None, 2, "here")
        self.histories = [History(self.path / "history.json") for _ in range(2)]
        self.verdicts = [Verdicts(history, "here") for history in self.histories]

    def verdict(self, daemon: int) -> Verdict:
        return self.verdicts[daemon].of(self.path / "t", (), self.path / "d")

    @rule(daemon=daemons, n_answers=st.integers(1, 2 * WAIT))
    def answer(self, daemon: int, n_answers: int) -> None:
        """Count answers without the drafter; stop once the drafter may be loaded again."""
        for _ in range(n_answers):
            verdict = self.verdict(daemon)
            if verdict.outcome is not PairOutcome.LOSES:
                return
            self.answered[verdict.n_retries] += 1
            self.histories[daemon].count_answer(self.key.pair, verdict.n_retries)

    @rule(daemon=daemons, n_late=st.integers(1, 4))
    def end_late(self, daemon: int, n_late: int) -> None:
        """Count answers that began under one verdict and end together."""
        verdict = self.verdict(daemon)
        if verdict.outcome is PairOutcome.LOSES:
            for _ in range(n_late):
                self.answered[verdict.n_retries] += 1
                self.histories[daemon].count_answer(self.key.pair, verdict.n_retries)

    @rule(daemon=daemons, gain=st.sampled_from([0.7, 0.99, 1.2]), is_enough=st.booleans())
    def learn(self, daemon: int, gain: float, *, is_enough: bool) -> None:
        n_requests = MIN_REQUESTS if is_enough else MIN_REQUESTS - 1
        band = BandHistory(
            drafter=DrafterKind.MODEL,
            band=2,
            gain=gain,
            n_requests=n_requests,
            n_drafted=MIN_DRAFTED,
        )
        self.histories[daemon].put(self.key, PairHistory(bands=(band,)))

    @rule(daemon=daemons)
    def save(self, daemon: int) -> None:
        assert self.histories[daemon].save()

    @rule(daemon=daemons)
    def kill(self, daemon: int) -> None:
        self.histories[daemon] = History(self.path / "history.json")
        self.verdicts[daemon] = Verdicts(self.histories[daemon], "here")

    @invariant()
    def no_retry_comes_too_early(self) -> None:
        for daemon in range(2):
            n_retries = self.histories[daemon].retry(self.key.pair).n_retries
            for n in range(n_retries):
                assert self.answered[n] >= WAITS[min(n, 2)]

    @invariant()
    def every_wait_ends(self) -> None:
        for daemon in range(2):
            verdict = self.verdict(daemon)
            if verdict.outcome is PairOutcome.LOSES:
                assert 1 <= verdict.n_answers_left <= WAITS[min(verdict.n_retries, 2)]

    def teardown(self) -> None:
        """Check that enough answers lead to a retry from any state."""
        for daemon, history in enumerate(getattr(self, "histories", ())):
            verdict = self.verdict(daemon)
            for _ in range(verdict.n_answers_left):
                assert self.verdict(daemon).outcome is PairOutcome.LOSES
                history.count_answer(self.key.pair, verdict.n_retries)
            assert self.verdict(daemon).outcome is not PairOutcome.LOSES
            assert history.save()
        self.folder.cleanup()
        self.patch.undo()


Daemons.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_no_drafter_is_locked_out_or_tried_too_often = Daemons.TestCase
