"""Check when an engine's part of the history is read, changed and saved."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from specd import core
from specd.pairs import History, HistoryKey, HistoryWriter


def band(drafter: str = "model", number: int = 0, n_requests: int = 1) -> core.BandHistory:
    return core.BandHistory(drafter=drafter, band=number, n_requests=n_requests)


def page(*bands: core.BandHistory, device: str = "CPU") -> core.PairHistory:
    return core.PairHistory(bands=bands, device=device)


class CountingHistory(History):
    """A history that counts its writes and sets an event at each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.n_saves = 0
        self.was_saved = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def save(self) -> bool:
        self.n_saves += 1
        done = super().save()
        self.loop.call_soon_threadsafe(self.was_saved.set)
        return done


@pytest.fixture
def spec(tmp_path: Path) -> core.EngineSpec:
    (tmp_path / "m.gguf").write_text("weights")
    return core.EngineSpec(weights=str(tmp_path / "m.gguf"))


def replace_weights(spec: core.EngineSpec) -> None:
    Path(spec.weights).write_text("other weights, in the same place")


async def test_the_next_engine_reads_what_the_last_one_wrote(
    tmp_path: Path, spec: core.EngineSpec
) -> None:
    for expected in (None, page(band(n_requests=0)), page(band(n_requests=1))):
        books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=math.inf)
        book = books.open(spec)
        known = await book.read()
        assert known == expected
        n_requests = known.bands[0].n_requests + 1 if known else 0
        book.write(page(band(n_requests=n_requests)))
        # The same daemon loads the model again before anything is saved.
        assert await books.open(spec).read() == page(band(n_requests=n_requests))
        await books.close()


async def test_many_changes_are_one_write(tmp_path: Path, spec: core.EngineSpec) -> None:
    history = CountingHistory(tmp_path / "h")
    books = HistoryWriter(history, "here", save_every_s=0.0)
    book = books.open(spec)
    await book.read()
    for n in range(100):
        book.write(page(band(n_requests=n)))
    await history.was_saved.wait()
    assert history.n_saves == 1
    assert History(tmp_path / "h").get(HistoryKey.of(spec, "here")) == page(band(n_requests=99))
    # Later changes are written later.
    history.was_saved.clear()
    book.write(page(band(n_requests=100)))
    await history.was_saved.wait()
    assert History(tmp_path / "h").get(HistoryKey.of(spec, "here")) == page(band(n_requests=100))
    await books.close()


async def test_nothing_is_written_too_early_or_without_a_change(
    tmp_path: Path, spec: core.EngineSpec
) -> None:
    books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=math.inf)
    book = books.open(spec)
    await book.read()
    book.write(page(band()))
    await asyncio.to_thread(lambda: None)
    assert not (tmp_path / "h").exists()
    await books.close()
    assert (tmp_path / "h").exists()
    (tmp_path / "h").unlink()
    await books.close()
    assert not (tmp_path / "h").exists()


async def test_a_drafter_that_did_not_load_is_not_forgotten(
    tmp_path: Path, spec: core.EngineSpec
) -> None:
    books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=math.inf)
    book = books.open(spec)
    await book.read()
    book.write(page(band("model"), band("lookup")))
    again = books.open(spec)
    await again.read()
    again.write(page(band("lookup", n_requests=2), band("lookup", 1)))
    known = await books.open(spec).read()
    assert known == page(band("lookup", n_requests=2), band("lookup", 1), band("model"))
    await books.close()


async def test_another_device_begins_a_page_of_its_own(
    tmp_path: Path, spec: core.EngineSpec
) -> None:
    books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=math.inf)
    for device in ("CPU", "CUDA0"):
        book = books.open(spec)
        await book.read()
        book.write(page(band(device), device=device))
    assert await books.open(spec).read() == page(band("CUDA0"), device="CUDA0")
    await books.close()


async def test_weights_that_are_gone_have_no_page(tmp_path: Path, spec: core.EngineSpec) -> None:
    books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=0.0)
    book = books.open(replace(spec, weights=str(tmp_path / "gone")))
    assert await book.read() is None
    book.write(page(band()))
    await books.close()
    assert not (tmp_path / "h").exists()


async def test_a_page_is_written_under_the_weights_that_were_loaded(
    tmp_path: Path, spec: core.EngineSpec
) -> None:
    books = HistoryWriter(History(tmp_path / "h"), "here", save_every_s=math.inf)
    book = books.open(spec)
    await book.read()
    replace_weights(spec)
    book.write(page(band()))
    assert await books.open(spec).read() is None
    await books.close()


# ----------------------------------------------------------------------------- answers


@pytest.fixture
def lost(tmp_path: Path, spec: core.EngineSpec) -> core.Pair:
    """Return a pair whose drafter is skipped because it lost."""
    (tmp_path / "d.gguf").write_text("drafter")
    target = core.LocalModel(name="m:x", full_name="", digest="", weights=Path(spec.weights))
    one = core.SkippedDrafter(
        name="d:x",
        weights=tmp_path / "d.gguf",
        gain=0.8,
        n_requests=40,
        n_drafted=400,
        n_accepted=40,
        n_answers_left=200,
        n_retries=0,
        detail="It lost.",
    )
    return core.Pair(target=target, skipped_drafters=(one,))


def of(pair: core.Pair, **changes: object) -> core.Pair:
    [one] = pair.skipped_drafters
    return replace(pair, skipped_drafters=(replace(one, **changes),))  # type: ignore[arg-type]


async def test_answers_without_a_drafter_that_lost_are_counted_and_saved(
    tmp_path: Path, spec: core.EngineSpec, lost: core.Pair
) -> None:
    drafter = str(lost.skipped_drafters[0].weights)
    history = History(tmp_path / "h")
    key = HistoryKey.of(replace(spec, drafter=drafter), "here")
    history.put(key, page(band()))
    books = HistoryWriter(history, "here", save_every_s=math.inf)
    for _ in range(3):
        books.count_answer(lost, None)
    books.count_answer(lost, "/another/drafter.gguf")
    # Not counted: the drafter is in use, no answers are left, the wait is an earlier one, or its
    # file is missing.
    books.count_answer(lost, drafter)
    books.count_answer(of(lost, n_answers_left=None), None)
    books.count_answer(of(lost, n_retries=1), None)
    books.count_answer(of(lost, weights=tmp_path / "gone"), None)
    books.count_answer(core.Pair(target=lost.target), None)
    await books.close()
    assert History(tmp_path / "h").retry(key.pair).n_answers == 4


async def test_counts_without_other_changes_are_saved_in_time(
    tmp_path: Path, spec: core.EngineSpec, lost: core.Pair
) -> None:
    key = HistoryKey.of(replace(spec, drafter=str(lost.skipped_drafters[0].weights)), "here")
    history = CountingHistory(tmp_path / "h")
    history.put(key, page(band()))
    assert history.save()
    history.was_saved = asyncio.Event()
    books = HistoryWriter(history, "here", save_every_s=0.0)
    books.count_answer(lost, None)
    await history.was_saved.wait()
    assert History(tmp_path / "h").retry(key.pair).n_answers == 1
    await books.close()
