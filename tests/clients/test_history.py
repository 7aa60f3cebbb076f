"""The history of the demo pair outlives its engine and its daemon."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specd import core
from specd.pairs import HISTORY_FILE, History, HistoryEntry, HistoryKey
from specd.pairs.history import FIRST_WAIT
from specd.placement import Devices, machine_name
from specd.runner import probe
from tests.daemon_process import Daemon, ended, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.native

PROMPT = "class Node:\n    def __init__(self"


def history(tmp_path: Path) -> History:
    return History(tmp_path / "state" / HISTORY_FILE)


def learned(tmp_path: Path) -> HistoryEntry:
    [entry] = history(tmp_path).entries()
    return entry


def drafted_by_model(entry: HistoryEntry) -> core.BandHistory:
    """Return the draft model's band of temperature 0.8."""
    [band] = (b for b in entry.history.bands if (b.drafter, b.band) == ("model", 2))
    return band


async def answer(
    daemon: Daemon, seed: int, n_predict: int = 48, *, model: str = "specd-demo"
) -> dict[str, Any]:
    """Return the speculation of one answer; its engine is then unloaded."""
    options = {"seed": seed, "temperature": 0.8, "num_predict": n_predict, "num_thread": 1}
    *_, last = await daemon.answer(PROMPT, model=model, keep_alive=0, options=options)
    assert await ended(daemon.engines())
    return dict(last["speculation"])


async def stop(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.process.wait() == 0


async def test_acceptance_is_summed_over_engines_and_daemons(tmp_path: Path) -> None:
    drafted = accepted = 0
    for seed in range(2):
        async with running(tmp_path, SPECD_DEMO="1") as daemon:
            for engine in range(2):
                said = await answer(daemon, 2 * seed + engine)
                drafted += said["draft_n"]
                accepted += said["draft_n_accepted"]
            await stop(daemon)
        entry = learned(tmp_path)
        assert entry.history.device == "CPU"
        assert entry.history.target_s
        bands = entry.history.bands
        assert drafted_by_model(entry).n_requests == 2 * seed + 2
        assert sum(band.n_drafted for band in bands) == drafted
        assert sum(band.n_accepted for band in bands) == accepted


async def test_the_first_request_after_a_restart_uses_the_history(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        await answer(daemon, 1)
        await stop(daemon)
    entry = learned(tmp_path)
    bands = [replace(b, n_requests=1000, gain=None) for b in entry.history.bands]
    past = history(tmp_path)
    past.put(entry.key, replace(entry.history, bands=tuple(bands)))
    assert past.save()
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        await answer(daemon, 1, n_predict=4)
        await stop(daemon)
    assert drafted_by_model(learned(tmp_path)).n_requests == 1001


async def test_a_rejected_drafter_is_tried_again_after_a_number_of_answers(tmp_path: Path) -> None:
    """The file is from an earlier version, whose verdicts expired after a month."""
    store = OllamaStore(tmp_path / "models")
    target, draft = (write_llama(tmp_path / f"{n}.gguf", seed=n) for n in range(2))
    store.add("big", weights=target, draft=draft)
    weights = (store.weights_path("big"), store.weights_path("big", "draft"))
    spec = core.EngineSpec(weights=str(weights[0]), drafter=str(weights[1]), n_threads=1)
    key = HistoryKey.of(spec, machine_name(Devices(probe())()))
    lost = core.BandHistory(drafter="model", band=2, gain=0.8, n_requests=50, n_drafted=500)
    old = HistoryEntry(key, 1.0, core.PairHistory(bands=(lost,), device="CPU"))
    file = tmp_path / "state" / HISTORY_FILE
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode({"version": 1, "pairs": [old]}))
    past = history(tmp_path)
    for _ in range(FIRST_WAIT - 2):
        past.count_answer(key.pair, 0)
    assert past.save()

    said = []
    for n_answers in (2, 1):  # the second time by a daemon that finds the count in the file
        async with running(tmp_path) as daemon:
            said += [await answer(daemon, 1, 8, model="big") for _ in range(n_answers)]
            await stop(daemon)
    assert [(one["drafter"], one["reason"]) for one in said[:2]] == [
        ("prompt lookup", "does_not_pay")
    ] * 2
    assert "It is tried again after 2 more answers" in said[0]["detail"]
    assert said[2]["drafter"] == "big:latest (its own draft)"
    assert history(tmp_path).retry(key.pair).n_retries == 1


async def test_the_history_survives_a_killed_engine(tmp_path: Path) -> None:
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        options = {"num_predict": 24, "num_thread": 1}
        await daemon.answer(PROMPT, model="specd-demo", options=options)
        async with daemon.generate(
            PROMPT, model="specd-demo", options={**options, "num_predict": -1}
        ) as response:
            json.loads(await response.content.readline())
            for engine in daemon.engines():
                engine.kill()
            await response.read()
        await stop(daemon)
    assert drafted_by_model(learned(tmp_path)).n_requests == 1
