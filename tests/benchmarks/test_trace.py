"""Test drafts that are assembled from recorded guesses, and trace files."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator import trace
from benchmarks.simulator.trace import _decode, _encode
from specd.core import DrafterKind
from specd.engine.sampler import CERTAIN
from specd.engine.speculative.acceptance import EDGES
from specd.engine.speculative.controller import MAX_DRAFT
from specd.errors import StoreError
from tests.benchmarks import synthetic_traces


def test_a_saved_trace_is_loaded_and_saved_as_the_same_bytes(tmp_path: Path) -> None:
    recorded = synthetic_traces.trace()
    first = recorded.answers[0]
    sure = replace(first, margins=[CERTAIN, *first.margins[1:]])
    recorded = trace.Trace(recorded.name, recorded.provenance, [sure, *recorded.answers[1:]])
    recorded.save(tmp_path / "a.npz")
    loaded = trace.load(tmp_path / "a.npz")
    assert [asdict(a) for a in loaded.answers] == [asdict(a) for a in recorded.answers]
    assert (loaded.name, loaded.provenance) == (recorded.name, recorded.provenance)
    loaded.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_trace_is_saved_under_the_name_that_was_asked_for_or_refused(tmp_path: Path) -> None:
    synthetic_traces.trace().save(tmp_path / "mine")
    assert trace.load(tmp_path / "mine").name == "invented"
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        synthetic_traces.trace().save(tmp_path / "missing" / "mine.npz")


def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    for name, content in (("text", b"not an archive"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError, match="no trace"):
            trace.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", numbers=np.zeros(3))
    with pytest.raises(StoreError, match="no trace"):
        trace.load(tmp_path / "other.npz")
    with pytest.raises(StoreError, match="no trace"):
        trace.load(tmp_path / "missing.npz")


@given(st.floats(0.0, 60.0), st.sampled_from(EDGES[DrafterKind.MODEL]))
def test_a_stored_margin_is_in_the_same_bin(margin: float, edge: float) -> None:
    edges = EDGES[DrafterKind.MODEL]
    for each in (margin, edge):
        [kept] = _decode(_encode([each]))
        assert bisect_right(edges, kept) == bisect_right(edges, each)
        assert kept == pytest.approx(each, abs=0.001)


def test_a_draft_continues_after_its_first_error() -> None:
    one = synthetic_traces.answer(0.6, 3)
    for at in range(1, len(one.tokens)):
        n_right, margins = one.draft(at, len(one.tokens))
        assert all(one.right[at : at + n_right])
        assert n_right <= len(margins) <= MAX_DRAFT
        assert margins[: n_right + 1] == one.margins[at : at + n_right + 1][: len(margins)]
        if len(margins) > n_right:
            assert not one.right[at + n_right]
            assert (
                margins[n_right + 1 :] == one.after_error[at + n_right][: MAX_DRAFT - n_right - 1]
            )


def test_a_draft_ends_at_a_predicted_end_of_the_answer() -> None:
    one = replace(synthetic_traces.answer(0.6, 3), right=[True] * 208)
    assert one.draft(10, 208)[0] == MAX_DRAFT
    assert one.draft(200, 208) == (8, one.margins[200:])
    assert one.draft(10, 14) == (4, one.margins[10:14])
