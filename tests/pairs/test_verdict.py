"""Check the verdicts on a pair from its history: it pays, it loses, or unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import BandHistory, DrafterKind, PairHistory
from specd.pairs import History, HistoryKey, file_identity
from specd.pairs.history import FIRST_WAIT, MOST_DOUBLINGS
from specd.pairs.verdict import (
    MIN_DRAFTED,
    MIN_REQUESTS,
    UNKNOWN_VERDICT,
    PairOutcome,
    Verdict,
    Verdicts,
    judge,
)

LOST = BandHistory(
    drafter=DrafterKind.MODEL,
    band=2,
    gain=0.8,
    parked="does_not_pay",
    n_requests=MIN_REQUESTS,
    n_drafted=MIN_DRAFTED,
    n_accepted=12,
)
WON = replace(LOST, band=0, gain=1.3, parked="")


@pytest.mark.parametrize(
    "bands,outcome",
    [
        ((), PairOutcome.UNKNOWN),
        ((LOST,), PairOutcome.LOSES),
        ((LOST, replace(LOST, band=0)), PairOutcome.LOSES),
        ((WON,), PairOutcome.PAYS),
        ((LOST, WON), PairOutcome.PAYS),
        ((replace(LOST, gain=0.99, parked=""),), PairOutcome.LOSES),
        ((replace(LOST, gain=1.0),), PairOutcome.UNKNOWN),
        ((replace(LOST, n_requests=MIN_REQUESTS - 1),), PairOutcome.UNKNOWN),
        ((replace(LOST, n_drafted=MIN_DRAFTED - 1),), PairOutcome.UNKNOWN),
        # Each band has too few measurements, but both together have enough.
        (
            (
                replace(LOST, n_requests=MIN_REQUESTS - 1, n_drafted=MIN_DRAFTED - 1),
                replace(LOST, band=1, n_requests=1, n_drafted=1),
            ),
            PairOutcome.LOSES,
        ),
        # A band with few drafts gains: not enough for a verdict that the pair pays or loses.
        ((LOST, replace(WON, n_drafted=5)), PairOutcome.UNKNOWN),
        # Prompt lookup is not the pair's drafter.
        ((replace(LOST, drafter=DrafterKind.LOOKUP),), PairOutcome.UNKNOWN),
        ((LOST, replace(WON, drafter=DrafterKind.LOOKUP)), PairOutcome.LOSES),
        # A band without drafts or without a gain does not count.
        ((LOST, replace(WON, n_drafted=0)), PairOutcome.LOSES),
        ((LOST, replace(WON, gain=None)), PairOutcome.LOSES),
    ],
)
def test_verdicts(bands: tuple[BandHistory, ...], outcome: PairOutcome) -> None:
    assert judge(bands).outcome is outcome


def test_a_verdict_carries_its_figures() -> None:
    found = judge((LOST, replace(LOST, band=1, gain=0.9, n_accepted=20)))
    assert (found.gain, found.n_requests, found.n_drafted, found.n_accepted) == (0.9, 40, 400, 32)


a_band = st.builds(
    BandHistory,
    drafter=st.sampled_from(DrafterKind),
    band=st.integers(0, 3),
    gain=st.none() | st.floats(0.1, 3.0),
    n_requests=st.integers(0, 60),
    n_drafted=st.integers(0, 300),
    n_accepted=st.integers(0, 300),
)


@given(st.lists(a_band, max_size=8), st.lists(a_band, max_size=8))
def test_more_history_never_makes_a_paying_pair_worse(
    some: list[BandHistory], more: list[BandHistory]
) -> None:
    first, both = judge(some), judge(some + more)
    if first.outcome is PairOutcome.PAYS:
        assert both.outcome is PairOutcome.PAYS
    if both.outcome is PairOutcome.LOSES:
        assert first.outcome is not PairOutcome.PAYS
        assert both.gain is not None
        assert both.gain < 1.0
    assert both.n_accepted <= both.n_drafted


# ----------------------------------------------------------------------------- two files


class Setting:
    """A target and a drafter with their history."""

    def __init__(self, folder: Path) -> None:
        self.target, self.drafter, self.adapter = (folder / name for name in "tda")
        for path in (self.target, self.drafter, self.adapter):
            path.write_text(path.name)
        self.now = 2e9
        self.history = History(folder / "history.json", unix_time=lambda: self.now)
        self.verdicts = Verdicts(self.history, "here")
        self.key = HistoryKey(
            target=file_identity(self.target),
            drafter=file_identity(self.drafter),
            kv_cache_type="f16",
            flash_attention=None,
            n_gpu_layers=-1,
            main_gpu=None,
            n_threads=2,
            machine="here",
        )

    def learn(self, *bands: BandHistory, **changes: object) -> None:
        key = msgspec.structs.replace(self.key, **changes)
        self.history.put(key, PairHistory(bands=bands))

    def answer(self) -> None:
        """Count an answer without the drafter."""
        self.history.count_answer(self.key.pair, self.verdict().n_retries)

    def verdict(self) -> Verdict:
        return self.verdicts.of(self.target, (), self.drafter)

    def outcome(self) -> PairOutcome:
        return self.verdict().outcome


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_all_ways_to_load_a_pair_count(setting: Setting) -> None:
    assert setting.outcome() is PairOutcome.UNKNOWN
    setting.learn(LOST)
    assert setting.outcome() is PairOutcome.LOSES
    setting.learn(LOST, n_threads=8)
    assert setting.outcome() is PairOutcome.LOSES
    setting.learn(WON, kv_cache_type="q8_0")
    assert setting.outcome() is PairOutcome.PAYS


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "elsewhere"},
        {"target": "sha256:0"},
        {"drafter": "sha256:0"},
        {"drafter": ""},
        {"adapters": ("sha256:0",)},
    ],
)
def test_the_history_of_another_pair_does_not_count(
    setting: Setting, changes: dict[str, object]
) -> None:
    setting.learn(LOST, **changes)
    assert setting.outcome() is PairOutcome.UNKNOWN


def test_an_adapted_target_has_verdicts_of_its_own(setting: Setting) -> None:
    setting.learn(LOST, adapters=(file_identity(setting.adapter),))
    found = setting.verdicts.of(setting.target, (setting.adapter,), setting.drafter)
    assert found.outcome is PairOutcome.LOSES


def test_a_verdict_is_forgotten_by_answers_and_never_by_a_clock(setting: Setting) -> None:
    setting.learn(LOST)
    setting.now += 100 * 365 * 24 * 3600.0
    for n_left in range(FIRST_WAIT, 0, -1):
        verdict = setting.verdict()
        assert (verdict.outcome, verdict.n_answers_left) == (PairOutcome.LOSES, n_left)
        setting.answer()
    assert setting.verdict() == UNKNOWN_VERDICT


def test_a_retry_needs_new_evidence_to_lose_and_the_next_wait_is_longer(setting: Setting) -> None:
    setting.learn(LOST)
    for n_retries in range(MOST_DOUBLINGS + 2):
        found = setting.verdict()
        wait = FIRST_WAIT * 2 ** min(n_retries, MOST_DOUBLINGS)
        assert (found.n_answers_left, found.n_retries) == (wait, n_retries)
        for _ in range(wait):
            setting.answer()
        # The retry starts with an empty history.
        known = setting.history.get(setting.key)
        assert known is not None
        assert known.bands == ()
        setting.learn(replace(LOST, n_requests=MIN_REQUESTS - 1))
        assert setting.outcome() is PairOutcome.UNKNOWN
        setting.learn(LOST)
        assert setting.outcome() is PairOutcome.LOSES


def test_a_retry_forgets_the_drafter_however_it_was_loaded_and_nothing_else(
    setting: Setting,
) -> None:
    lookup = replace(LOST, drafter=DrafterKind.LOOKUP)
    setting.learn(LOST, lookup)
    setting.learn(LOST, n_threads=8)
    setting.learn(LOST, machine="elsewhere")
    for _ in range(FIRST_WAIT):
        setting.answer()
    assert setting.outcome() is PairOutcome.UNKNOWN
    kept = {e.key: e.history.bands for e in setting.history.known()}
    assert kept == {
        setting.key: (lookup,),
        msgspec.structs.replace(setting.key, n_threads=8): (),
        msgspec.structs.replace(setting.key, machine="elsewhere"): (LOST,),
    }


def test_answers_from_before_a_retry_do_not_count_after_it(setting: Setting) -> None:
    """Four answers run at once; the first of them to end starts the retry."""
    setting.learn(LOST)
    for _ in range(FIRST_WAIT + 3):
        setting.history.count_answer(setting.key.pair, 0)
    setting.learn(LOST)
    assert setting.verdict().n_answers_left == 2 * FIRST_WAIT


def test_a_user_can_delete_a_verdict(setting: Setting) -> None:
    setting.learn(LOST)
    assert setting.history.save()
    before = setting.verdicts.stamp()
    other = History(setting.history.in_state_dir("history.json"))
    assert other.forget(lambda _: True) == 1
    assert setting.outcome() is PairOutcome.UNKNOWN
    assert setting.verdicts.stamp() != before


def test_the_stamp_changes_with_measurements_and_counts(setting: Setting) -> None:
    stamps = [setting.verdicts.stamp()]
    assert setting.verdicts.stamp() == stamps[0]
    setting.learn(LOST)
    stamps.append(setting.verdicts.stamp())
    setting.answer()
    stamps.append(setting.verdicts.stamp())
    assert setting.verdicts.stamp() == stamps[-1]
    assert len(set(stamps)) == 3


def test_without_a_history_nothing_is_known(tmp_path: Path) -> None:
    verdicts = Verdicts(None, "here")
    assert verdicts.of(tmp_path, (), tmp_path) == UNKNOWN_VERDICT
    assert verdicts.stamp() is None


def test_files_that_are_not_there_have_no_verdict(setting: Setting) -> None:
    setting.learn(LOST)
    setting.drafter.unlink()
    assert setting.outcome() is PairOutcome.UNKNOWN
