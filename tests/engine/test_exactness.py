"""The self-check on backends that round on purpose, and the effects of SPECD_EXACT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specd.core import Done, EngineRequest, SamplingParams, SpeculationMode
from specd.engine.backend import Batch
from specd.engine.exact_passes import ExactPasses
from specd.engine.exactness import N_EXTRA_TOKENS, N_HISTORY, Depth, Findings, measure
from specd.engine.loop import Loop
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.cost_model import CostModel
from specd.engine.speculative.draft_model import DraftModel
from specd.ipc.messages import Finished, ToDaemon, Tokens
from tests.fakes.backend import FakeBackend, FakeVocabulary

LONGEST, N_BATCH = 16, 64
#: Whether a pass changes the last bits of a row.  Arguments: the batch, the row's slot, and
#: the number of tokens in the cache.
Rounds = Callable[[Batch, int, int], bool]


def never(_batch: Batch, _slot: int, _held: int) -> bool:
    return False


def by_width(least: int) -> Rounds:
    """Return a rule that rounds in passes of at least this many rows."""
    return lambda batch, _slot, _held: len(batch) >= least


def at_width(width: int) -> Rounds:
    return lambda batch, _slot, _held: Counter(batch.slots).most_common(1)[0][1] == width


def by_neighbours(batch: Batch, slot: int, _held: int) -> bool:
    return any(other != slot for other in batch.slots)


def deep_and_wide(batch: Batch, _slot: int, held: int) -> bool:
    return held > N_EXTRA_TOKENS and len(batch) > 1


class Rounding(FakeBackend):
    """A fake backend whose rows have different last bits in some passes."""

    def __init__(self, rounds: Rounds, n_slots: int = 3, n_batch: int = N_BATCH) -> None:
        super().__init__(n_slots, n_batch=n_batch, eog_bias=-9.0)
        self._rounds = rounds
        self._kept: list[int] = []
        self._batch = Batch()

    def decode(self, batch: Batch) -> None:
        super().decode(batch)
        held = sum(map(len, self.cells))
        # Enough to turn a near tie now and then.
        other = np.sin(np.arange(self.n_vocab, dtype=np.float32)) * np.float32(0.3)
        for index in self._rows:
            if self._rounds(batch, batch.slots[index], held):
                self._rows[index] = (self._rows[index] + other).astype(np.float32)

    def save_history(self) -> None:
        self._kept = list(self.cells[0])

    def restore_history(self, slots: Sequence[int]) -> None:
        for cells in self.cells:
            cells.clear()
        for slot in slots:
            self.cells[slot] = list(self._kept)


def found(rounds: Rounds, n_slots: int = 3, *, thorough: bool = True) -> Findings:
    return measure(
        Rounding(rounds, n_slots),
        n_slots=n_slots,
        longest=LONGEST,
        widest=N_BATCH,
        depth=Depth.LONG_SLOT,
        n_single_rows=LONGEST + 1,
        thorough=thorough,
        has_shared_cells=False,
    )


@pytest.mark.parametrize("thorough", [True, False])
def test_a_backend_that_never_rounds_is_exact(thorough: bool) -> None:
    findings = found(never, thorough=thorough)
    assert findings == Findings(n_invariant=N_BATCH, parallel=True, depth=True)
    exactness = findings.exactness(LONGEST, 3, N_BATCH)
    assert (exactness.speculation, exactness.parallel, exactness.prompt_cache) == (True,) * 3


@pytest.mark.parametrize("width", range(2, LONGEST + 2))
def test_each_width_that_rounds_is_found(width: int) -> None:
    for rounds in (by_width(width), at_width(width)):
        findings = found(rounds)
        assert findings.n_invariant < width
        assert not findings.exactness(LONGEST, 1, N_BATCH).speculation


def test_rounding_by_other_slots_is_found() -> None:
    findings = found(by_neighbours)
    exactness = findings.exactness(LONGEST, 3, N_BATCH)
    assert (exactness.speculation, exactness.parallel) == (True, False)
    assert findings.exactness(LONGEST, 1, N_BATCH).parallel


@pytest.mark.parametrize("thorough", [True, False])
def test_kernels_that_differ_only_with_a_long_cache_are_found(thorough: bool) -> None:
    findings = found(deep_and_wide, thorough=thorough)
    assert (findings.n_invariant, findings.depth) == (1, False)
    assert N_HISTORY < N_EXTRA_TOKENS


def test_wide_prompts_that_round_are_found() -> None:
    exactness = found(by_width(33)).exactness(LONGEST, 1, N_BATCH)
    assert (exactness.speculation, exactness.prompt_cache) == (True, False)


# --------------------------------------------------------------------------- SPECD_EXACT


class Engine:
    def __init__(self, rounds: Rounds, *, exact: bool = True) -> None:
        passes = None
        if exact:
            passes = ExactPasses.of(found(rounds), LONGEST, N_BATCH)
        self.said: list[ToDaemon] = []
        costs = CostModel({1: 1.0, 17: 1.2}, 0.01)
        self.loop = Loop(
            Rounding(rounds),
            FakeVocabulary(),
            Controller(costs, 0.0),
            self.said.append,
            n_ctx=256,
            n_slots=3,
            drafter=DraftModel(FakeBackend(3, agreement=0.9), FakeVocabulary(), 3),
            exact=passes,
        )

    def answers(self, requests: Sequence[EngineRequest]) -> list[str]:
        """Return the texts of requests that run together."""
        self.said.clear()
        for number, request in enumerate(requests):
            self.loop.submit(number, request)
        while self.loop.is_busy:
            self.loop.step()
        ends = [m for m in self.said if isinstance(m, Finished)]
        assert len(ends) == len(requests)
        assert all(isinstance(end.event, Done) for end in ends)
        said = [m for m in self.said if isinstance(m, Tokens)]
        return [
            "".join(m.token.text for m in said if m.request_id == number)
            for number in range(len(requests))
        ]


def requests() -> list[EngineRequest]:
    """Return requests whose prompts share prefixes, each with and without drafts."""
    prompts = ("HELLO", "HELLO" * 20, "HELLO" * 20 + "WORLD", "AB" * 70, "HELLO" * 16 + "Z")
    drafting = (
        {"n_draft_max": 0},
        {"n_draft_max": 4, "mode": SpeculationMode.FIXED},
        {"n_draft_max": 9, "mode": SpeculationMode.FIXED},
    )
    return [
        EngineRequest(
            prompt=(prompt,),
            n_predict=40,
            sampling=SamplingParams(seed=seed, temperature=1.0),
            **how,
        )
        for seed, prompt in enumerate(prompts)
        for how in drafting
    ]


ROUNDING: dict[str, Rounds] = {
    "never": never,
    "by width": by_width(2),
    "wide prompts": by_width(33),
    "by neighbours": by_neighbours,
    "deep": deep_and_wide,
}


@pytest.mark.parametrize("name", ROUNDING)
def test_with_exact_on_a_backend_that_rounds_gives_each_seed_one_text(name: str) -> None:
    alone = [Engine(ROUNDING[name]).answers([request])[0] for request in requests()]
    assert alone[0::3] == alone[1::3] == alone[2::3]
    shared = Engine(ROUNDING[name])
    assert shared.answers(requests()) == alone
    assert shared.answers(requests()[::-1]) == alone[::-1]
    # The cache holds tokens of earlier requests.
    assert [shared.answers([request])[0] for request in requests()] == alone


@pytest.mark.parametrize("name", ["by width", "by neighbours", "wide prompts"])
def test_without_exact_the_texts_differ(name: str) -> None:
    alone = [Engine(ROUNDING[name], exact=False).answers([request])[0] for request in requests()]
    shared = Engine(ROUNDING[name], exact=False)
    again = [shared.answers(requests()), [shared.answers([request])[0] for request in requests()]]
    assert again != [alone, alone]


@pytest.mark.parametrize("name, n_cached", [("by width", N_BATCH), ("never", 100)])
def test_only_whole_prompt_pieces_are_reused_if_widths_round(name: str, n_cached: int) -> None:
    engine = Engine(ROUNDING[name])
    request = EngineRequest(prompt=("HELLO" * 20,), n_predict=4, sampling=SamplingParams(seed=1))
    expected = engine.answers([request])
    assert engine.answers([request]) == expected
    ends = [m.event for m in engine.said if isinstance(m, Finished)]
    assert [end.usage.n_cached for end in ends if isinstance(end, Done)] == [n_cached]


def test_an_exact_backend_has_no_restrictions() -> None:
    passes = ExactPasses.of(found(never), LONGEST, N_BATCH)
    assert passes == ExactPasses(drafts=True, n_shared=64, n_chunk=64, can_reuse_all=True)


def test_without_findings_every_slot_is_computed_alone() -> None:
    passes = ExactPasses.of(None, LONGEST, N_BATCH)
    assert passes == ExactPasses(drafts=False, n_shared=0, n_chunk=64, can_reuse_all=False)
