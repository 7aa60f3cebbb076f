"""Check how measured memory corrects the next estimate."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.placement.estimate import Block, Footprint
from specd.placement.memory_corrections import MAX_CORRECTIONS, CorrectionKey, MemoryCorrections

MIB = 2**20
ESTIMATE = Footprint(
    blocks=(Block(weights_bytes=100 * MIB, cache_bytes=50 * MIB),) * 4,
    input_bytes=40 * MIB,
    output_bytes=60 * MIB,
    extra_bytes=0,
    device_scratch_bytes=80 * MIB,
    host_scratch_bytes=20 * MIB,
    tied_bytes=0,
    staged_bytes=10 * MIB,
)
KEY = CorrectionKey("w", False, (), "f16", None, False)
TAKEN = core.ModelMemory(
    device="CPU",
    total_bytes=800 * MIB,
    vram_bytes=0,
    by_device=(("CPU", 800 * MIB),),
    weights_bytes=500 * MIB,
    cache_bytes=200 * MIB,
    scratch_bytes=100 * MIB,
)


def key(name: str) -> CorrectionKey:
    return CorrectionKey(name, False, (), "f16", None, False)


def on_gpus(n: int, **parts: Any) -> core.ModelMemory:
    devices = tuple((f"CUDA{at}", 1) for at in range(n))
    return replace(TAKEN, by_device=(*devices, ("CPU", 1)), **parts)


# ---------------------------------------------------------------------------- estimates


def test_an_estimate_without_a_measurement_does_not_change() -> None:
    assert MemoryCorrections(None).correct(KEY, ESTIMATE) is ESTIMATE


def test_an_estimate_that_was_right_stays() -> None:
    learned = MemoryCorrections(None)
    learned.record(KEY, ESTIMATE, TAKEN)
    assert learned.correct(KEY, ESTIMATE) == ESTIMATE
    assert learned.correct(key("another"), ESTIMATE) is ESTIMATE


def test_the_next_estimate_matches_the_measurement() -> None:
    learned = MemoryCorrections(None)
    taken = replace(TAKEN, weights_bytes=550 * MIB, cache_bytes=250 * MIB, scratch_bytes=200 * MIB)
    learned.record(KEY, ESTIMATE, taken)
    found = learned.correct(KEY, ESTIMATE)
    assert found.weights_bytes == 550 * MIB
    assert found.cache_bytes == 250 * MIB
    assert found.device_scratch_bytes + found.host_scratch_bytes == 200 * MIB
    assert found.total_bytes == 1000 * MIB


def test_cache_and_scratch_are_corrected_in_proportion() -> None:
    learned = MemoryCorrections(None)
    learned.record(KEY, ESTIMATE, replace(TAKEN, cache_bytes=300 * MIB, scratch_bytes=50 * MIB))
    longer = replace(
        ESTIMATE,
        blocks=(Block(weights_bytes=100 * MIB, cache_bytes=100 * MIB),) * 4,
        device_scratch_bytes=160 * MIB,
    )
    found = learned.correct(KEY, longer)
    assert found.weights_bytes == longer.weights_bytes
    assert found.cache_bytes == 600 * MIB
    assert found.device_scratch_bytes == 80 * MIB


def test_each_device_has_its_own_scratch_and_transfer_memory() -> None:
    learned = MemoryCorrections(None)
    learned.record(KEY, ESTIMATE, on_gpus(2, scratch_bytes=(2 * 80 + 20 + 10) * MIB))
    assert learned.correct(KEY, ESTIMATE) == ESTIMATE
    tied = replace(ESTIMATE, tied_bytes=40 * MIB)
    learned.record(KEY, tied, on_gpus(1, scratch_bytes=110 * MIB))
    assert learned.correct(KEY, tied) == tied


@pytest.mark.parametrize("part", ["weights_bytes", "cache_bytes", "scratch_bytes"])
def test_missing_measurements_correct_nothing(part: str) -> None:
    learned = MemoryCorrections(None)
    nothing: dict[str, Any] = {part: 0}
    learned.record(KEY, ESTIMATE, replace(TAKEN, **nothing))
    assert learned.correct(KEY, ESTIMATE) == ESTIMATE


def test_tiny_sizes_give_no_ratio() -> None:
    small = replace(ESTIMATE, device_scratch_bytes=1000, host_scratch_bytes=1000)
    learned = MemoryCorrections(None)
    learned.record(KEY, small, TAKEN)
    assert learned.correct(KEY, ESTIMATE) == ESTIMATE


BYTES = st.integers(0, 2**50)


@given(weights=BYTES, cache=BYTES, scratch=BYTES, n_refusals=st.integers(0, 30))
def test_no_correction_makes_an_estimate_absurd(
    weights: int, cache: int, scratch: int, n_refusals: int
) -> None:
    learned = MemoryCorrections(None)
    learned.record(
        KEY,
        ESTIMATE,
        replace(TAKEN, weights_bytes=weights, cache_bytes=cache, scratch_bytes=scratch),
    )
    for _ in range(n_refusals):
        learned.record_refusal(KEY)
    found = learned.correct(KEY, ESTIMATE)
    assert 0.25 * ESTIMATE.total_bytes <= found.total_bytes <= 3 * 8 * ESTIMATE.total_bytes
    assert 0.7 <= found.weights_bytes / ESTIMATE.weights_bytes <= 3 * 1.5


def test_all_weights_are_corrected_alike() -> None:
    """This includes the projector and a device's copy of the tied embeddings."""
    learned = MemoryCorrections(None)
    whole = replace(ESTIMATE, extra_bytes=100 * MIB, tied_bytes=40 * MIB, transfer_bytes=10 * MIB)
    weights = whole.weights_bytes + whole.extra_bytes
    learned.record(KEY, whole, replace(TAKEN, weights_bytes=weights + weights // 4))
    found = learned.correct(KEY, whole)
    assert found.weights_bytes + found.extra_bytes == weights + weights // 4
    assert (found.extra_bytes, found.tied_bytes) == (125 * MIB, 50 * MIB)
    learned.record(KEY, whole, replace(TAKEN, weights_bytes=weights, scratch_bytes=200 * MIB))
    assert learned.correct(KEY, whole).transfer_bytes == 20 * MIB


# ----------------------------------------------------------------------------- refusals


def test_a_refusal_raises_the_next_estimate_by_a_quarter() -> None:
    learned = MemoryCorrections(None)
    learned.record_refusal(KEY)
    assert learned.correct(KEY, ESTIMATE).total_bytes == 1.25 * ESTIMATE.total_bytes
    learned.record_refusal(KEY)
    assert learned.correct(KEY, ESTIMATE).total_bytes == 1.5 * ESTIMATE.total_bytes


def test_refusals_are_forgotten_with_every_success() -> None:
    learned = MemoryCorrections(None)
    learned.record_refusal(KEY)
    totals = []
    for _ in range(4):
        learned.record(KEY, ESTIMATE, TAKEN)
        totals.append(learned.correct(KEY, ESTIMATE).total_bytes / ESTIMATE.total_bytes)
    assert totals == [1.125, 1.0625, 1.0, 1.0]


def test_a_refusal_does_not_undo_a_measurement() -> None:
    learned = MemoryCorrections(None)
    learned.record(KEY, ESTIMATE, replace(TAKEN, weights_bytes=550 * MIB))
    learned.record_refusal(KEY)
    assert learned.correct(KEY, ESTIMATE).weights_bytes == 1.25 * 550 * MIB


# ----------------------------------------------------------------------------- contexts


def test_the_process_memory_is_the_recent_maximum() -> None:
    learned = MemoryCorrections(None)
    for n_bytes in (300, 500, 100):
        learned.record_process_bytes("GPU-1", n_bytes * MIB)
    learned.record_process_bytes("GPU-2", 200 * MIB)
    assert learned.process_bytes() == {"GPU-1": 450 * MIB, "GPU-2": 200 * MIB}


@pytest.mark.parametrize("n_bytes", [0, -5, 2**40])
def test_impossible_process_memory_is_ignored(n_bytes: int) -> None:
    learned = MemoryCorrections(None)
    learned.record_process_bytes("GPU-1", n_bytes)
    assert learned.process_bytes() == {}


# --------------------------------------------------------------------------------- keys


def test_a_correction_is_for_one_file_loaded_in_one_way(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("target", "drafter", "adapter", "projector", "other")]
    for path in paths:
        path.write_text(path.name)
    target, drafter, adapter, projector, other = map(str, paths)
    spec = core.EngineSpec(weights=target)
    pair = replace(spec, drafter=drafter)
    ways = [
        CorrectionKey.of_target(spec),
        CorrectionKey.of_target(pair),
        CorrectionKey.of_drafter(pair),
        CorrectionKey.of_target(replace(spec, weights=other)),
        CorrectionKey.of_target(replace(spec, adapters=(adapter,))),
        CorrectionKey.of_target(replace(spec, projector=projector)),
        CorrectionKey.of_target(replace(spec, kv_cache_type="q8_0")),
        CorrectionKey.of_target(replace(spec, flash_attention=False)),
        CorrectionKey.of_target(replace(spec, embeds=True)),
    ]
    assert len(set(ways)) == len(ways)
    placed = replace(
        pair, n_ctx=99, n_slots=3, n_gpu_layers=7, devices=("GPU-1",), tensor_split=(1.0,)
    )
    assert CorrectionKey.of_target(placed) == CorrectionKey.of_target(pair)
    assert CorrectionKey.of_drafter(placed) == CorrectionKey.of_drafter(pair)


def test_the_key_of_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CorrectionKey.of_target(core.EngineSpec(weights=str(tmp_path / "gone")))


# ------------------------------------------------------------------------------ the file


def wrong(learned: MemoryCorrections, which: CorrectionKey = KEY) -> None:
    learned.record(which, ESTIMATE, replace(TAKEN, cache_bytes=300 * MIB))


def test_corrections_outlive_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "state" / "memory.json"
    before = MemoryCorrections(path)
    wrong(before)
    before.record_refusal(KEY)
    before.record_process_bytes("GPU-1", 300 * MIB)
    after = MemoryCorrections(path)
    assert after.correct(KEY, ESTIMATE) == before.correct(KEY, ESTIMATE) != ESTIMATE
    assert after.process_bytes() == {"GPU-1": 300 * MIB}


def test_two_daemons_learn_from_each_other(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    one, two = MemoryCorrections(path), MemoryCorrections(path)
    wrong(one, key("a"))
    wrong(two, key("b"))
    for learned in (one, two):
        for name in "ab":
            assert learned.correct(key(name), ESTIMATE).cache_bytes == 300 * MIB
    path.unlink()
    assert one.correct(key("a"), ESTIMATE) is ESTIMATE


DAMAGED = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"version": 2, "lessons": []}',
    b'{"version": 1, "lessons": [{"key": 1}]}',
    b'{"version": 1, "lessons": [], "contexts": [{"device": "x", "n_bytes": "much"}]}',
    b" " * (5 * 2**20),
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_set_aside(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "memory.json"
    path.write_bytes(data)
    learned = MemoryCorrections(path)
    assert learned.correct(KEY, ESTIMATE) is ESTIMATE
    assert "is damaged and was renamed" in caplog.text
    assert (tmp_path / "memory.json.damaged").read_bytes() == data
    wrong(learned)
    assert MemoryCorrections(path).correct(KEY, ESTIMATE).cache_bytes == 300 * MIB


@pytest.mark.parametrize(
    "field, value",
    [("cache", 0), ("cache", -1), ("scratch", 1e999), ("refusals", -1), ("used_at", -1)],
)
def test_impossible_figures_are_damage(
    field: str, value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "memory.json"
    wrong(MemoryCorrections(path))
    written = json.loads(path.read_bytes())
    written["lessons"][0][field] = value
    path.write_text(json.dumps(written).replace("Infinity", "1e999"))
    assert MemoryCorrections(path).correct(KEY, ESTIMATE) is ESTIMATE
    assert "was renamed" in caplog.text


def test_a_damaged_row_does_not_affect_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "memory.json"
    learned = MemoryCorrections(path)
    wrong(learned)
    learned.record_process_bytes("GPU-1", MIB)
    written = json.loads(path.read_bytes())
    written["lessons"].insert(0, {**written["lessons"][0], "cache": -1})
    written["contexts"].append({"device": 7, "n_bytes": 2**70})
    path.write_text(json.dumps(written))
    found = MemoryCorrections(path)
    assert found.correct(KEY, ESTIMATE).cache_bytes == 300 * MIB
    assert found.process_bytes() == {"GPU-1": MIB}
    assert "ignored 1 of 2 saved entries, which are damaged" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["memory.json"]


def test_figures_that_are_too_large_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    learned = MemoryCorrections(path)
    wrong(learned)
    learned.record_process_bytes("GPU-1", MIB)
    written = json.loads(path.read_bytes())
    written["lessons"][0] |= {"cache": 1e9, "scratch": 1e9, "weights_bytes": 2**50}
    written["contexts"] = [{"device": "GPU-1", "n_bytes": 2**50}, {"device": "x", "n_bytes": -1}]
    path.write_text(json.dumps(written))
    found = MemoryCorrections(path)
    assert found.correct(KEY, ESTIMATE).total_bytes == (500 * 1.5 + 200 * 2 + 100 * 8) * MIB
    assert found.process_bytes() == {"GPU-1": 2 * 2**30}


def test_the_least_recently_used_corrections_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    learned = MemoryCorrections(path, unix_time=lambda: 10_000.0)
    wrong(learned, key("oldest"))
    template = json.loads(path.read_bytes())["lessons"][0]
    corrections = [
        template | {"key": template["key"] | {"weights": str(at)}, "used_at": 1.0 + at}
        for at in range(MAX_CORRECTIONS)
    ]
    path.write_text(
        json.dumps({"version": 1, "lessons": [template | {"used_at": 0}, *corrections]})
    )
    wrong(learned, key("newest"))
    found = MemoryCorrections(path)
    known = [found.correct(key(name), ESTIMATE) is not ESTIMATE for name in ("newest", "1", "0")]
    assert known == [True, True, False]
    assert len(json.loads(path.read_bytes())["lessons"]) == MAX_CORRECTIONS


def test_a_file_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder")
    learned = MemoryCorrections(tmp_path / "state" / "memory.json")
    with caplog.at_level(logging.WARNING):
        wrong(learned)
        wrong(learned)
    assert len(caplog.records) == 1
    assert learned.correct(KEY, ESTIMATE).cache_bytes == 300 * MIB
