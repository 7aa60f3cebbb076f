"""Test how modes change a request."""

from __future__ import annotations

from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Kind, Mode
from specd.core import DrafterKind, EngineRequest, SamplingParams, SpeculationMode

REQUEST = EngineRequest(prompt=("a",), sampling=SamplingParams(), n_predict=7)


def test_auto_changes_nothing_in_a_request() -> None:
    assert AUTO.applied(REQUEST) == REQUEST


def test_plain_drafts_nothing_and_fixed_always_as_much() -> None:
    assert PLAIN.applied(REQUEST).n_draft_max == 0
    fixed = Mode.fixed(3).applied(REQUEST)
    assert (fixed.n_draft_max, fixed.mode) == (3, SpeculationMode.FIXED)
    assert (fixed.prompt, fixed.n_predict) == (("a",), 7)


def test_a_drafter_alone_is_auto_with_only_that_drafter() -> None:
    alone = Mode.drafter(DrafterKind.LOOKUP)
    request = alone.applied(REQUEST)
    assert (request.drafters, request.mode) == ((DrafterKind.LOOKUP,), SpeculationMode.AUTO)
    assert (alone.name, alone.kind) == ("lookup alone", Kind.DRAFTER)


def test_modes_are_values_that_can_be_looked_up() -> None:
    assert {Mode.fixed(3): 1}[Mode.fixed(3)] == 1
    assert Mode.fixed(3) != Mode.fixed(4)
    assert [mode.is_peer for mode in (PLAIN, AUTO, PEER_PLAIN, Mode.peer_draft(1))] == [
        False,
        False,
        True,
        True,
    ]


def test_modes_have_the_order_of_the_tables() -> None:
    modes = [Mode.peer_draft(1), AUTO, Mode.fixed(10), Mode.fixed(2), PEER_PLAIN, PLAIN]
    assert [mode.name for mode in sorted(modes, key=lambda mode: mode.sort_key)] == [
        "plain",
        "k = 2",
        "k = 10",
        "auto",
        "peer plain",
        "peer n_max = 1",
    ]
