"""Check that the history of pairs survives restarts of the daemon and damage to its file."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.pairs import History, HistoryKey, file_identity, history
from specd.pairs.history import FIRST_WAIT, PairKey, Retry

ROOT = Path(__file__).parents[2]
KEY = HistoryKey(
    target="sha256:a",
    drafter="sha256:b",
    kv_cache_type="f16",
    flash_attention=None,
    n_gpu_layers=-1,
    main_gpu=None,
    n_threads=2,
    machine="Quick CPU",
)
BAND = core.BandHistory(
    drafter="model",
    band=2,
    by_confidence=((0.5, 4.0), (0.9, 100.0)),
    by_depth=((0.75, 8.0),),
    gain=1.4,
    n_requests=3,
    n_drafted=40,
    n_accepted=30,
)
LEARNED = core.PairHistory(bands=(BAND,), device="CPU", target_s=((1, 0.01), (4, 0.02)))


def key(n: int) -> HistoryKey:
    return msgspec.structs.replace(KEY, target=f"sha256:{n}")


def saved(path: Path, learned: core.PairHistory = LEARNED) -> History:
    kept = History(path)
    kept.put(KEY, learned)
    assert kept.save()
    return kept


def test_the_next_daemon_reads_the_saved_history(tmp_path: Path) -> None:
    path = tmp_path / "state" / "specd" / "history.json"
    assert History(path).get(KEY) is None
    saved(path)
    assert History(path).get(KEY) == LEARNED
    assert [p.name for p in path.parent.iterdir()] == ["history.json"]


def test_only_its_own_daemon_has_the_unsaved_history(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    kept = saved(path)
    newer = replace(LEARNED, bands=())
    kept.put(KEY, newer)
    assert kept.get(KEY) == newer
    assert History(path).get(KEY) == LEARNED


@pytest.mark.parametrize(
    "other",
    [
        {"target": "sha256:c"},
        {"drafter": ""},
        {"kv_cache_type": "q8_0"},
        {"flash_attention": True},
        {"n_gpu_layers": 0},
        {"main_gpu": 1},
        {"n_threads": 4},
        {"machine": "Quick CPU; Fast 9000"},
    ],
)
def test_the_history_of_another_pair_or_machine_does_not_count(
    tmp_path: Path, other: dict[str, object]
) -> None:
    kept = saved(tmp_path / "history.json")
    assert kept.get(msgspec.structs.replace(KEY, **other)) is None


def test_two_daemons_do_not_forget_each_others_pairs(tmp_path: Path) -> None:
    first, second = History(tmp_path / "h"), History(tmp_path / "h")
    first.put(key(1), LEARNED)
    second.put(key(2), LEARNED)
    assert first.save()
    assert second.save()
    assert {entry.key for entry in first.entries()} == {key(1), key(2)}


def test_the_pairs_used_longest_ago_are_dropped(tmp_path: Path) -> None:
    now = [0.0]
    kept = History(tmp_path / "h", unix_time=lambda: now[0])
    for n in range(history.MAX_PAIRS):
        now[0] += 1
        kept.put(key(n), LEARNED)
    assert kept.save()
    now[0] += 1
    kept.put(key(0), LEARNED)
    kept.put(key(-1), LEARNED)
    assert kept.save()
    left = {entry.key for entry in kept.entries()}
    assert len(left) == history.MAX_PAIRS
    assert {key(0), key(-1)} < left
    assert key(1) not in left


def test_a_daemon_that_cannot_save_does_not_grow(tmp_path: Path) -> None:
    kept = History(tmp_path / "h")
    for n in range(history.MAX_PAIRS + 3):
        kept.put(key(n), LEARNED)
    assert kept.get(key(2)) is None
    assert kept.get(key(3)) == LEARNED


def test_only_the_requested_pairs_are_forgotten(tmp_path: Path) -> None:
    kept = saved(tmp_path / "h")
    kept.put(key(1), LEARNED)
    assert kept.save()
    assert kept.forget(lambda known: known.target == KEY.target) == 1
    assert [entry.key for entry in kept.entries()] == [key(1)]
    assert kept.forget(lambda _: True) == 1
    assert kept.forget(lambda _: True) == 0


def test_pairs_that_another_process_forgot_do_not_come_back(tmp_path: Path) -> None:
    daemon = saved(tmp_path / "h")
    History(tmp_path / "h").forget(lambda _: True)
    daemon.put(key(1), LEARNED)
    assert daemon.save()
    assert [entry.key for entry in daemon.entries()] == [key(1)]


# --------------------------------------------------------------------------- answers


def count(kept: History, n: int, pair: PairKey = KEY.pair) -> None:
    for _ in range(n):
        kept.count_answer(pair, kept.retry(pair).n_retries)


def test_counted_answers_outlive_the_daemon_and_so_does_the_retry(tmp_path: Path) -> None:
    path = tmp_path / "h"
    kept = saved(path)
    count(kept, 7)
    assert not kept.is_saved
    assert kept.save()
    assert kept.is_saved
    kept = History(path)
    assert kept.retry(KEY.pair) == Retry(KEY.pair, 7, 0)
    count(kept, FIRST_WAIT - 7)
    assert kept.save()
    kept = History(path)
    assert kept.retry(KEY.pair) == Retry(KEY.pair, 0, 1)
    assert kept.get(KEY) == replace(LEARNED, bands=())


def test_daemons_that_share_a_file_count_together(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "h"), History(tmp_path / "h")
    for kept in (first, second) * 2:
        count(kept, 10)
        assert kept.save()
    assert second.retry(KEY.pair).n_answers == 40
    # If both count before either writes, the larger count stays, so no answer counts twice.
    count(first, 10)
    count(second, 15)
    assert first.save()
    assert second.save()
    assert first.retry(KEY.pair).n_answers == 55


def test_two_daemons_begin_one_retry(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "h"), History(tmp_path / "h")
    count(first, FIRST_WAIT - 1)
    assert first.save()
    for kept in (first, second):
        count(kept, 1)
    first.put(KEY, LEARNED)  # the retry has been measured
    assert second.save()
    assert first.save()
    for kept in (first, second, History(tmp_path / "h")):
        assert kept.retry(KEY.pair) == Retry(KEY.pair, 0, 1)
        assert kept.get(KEY) == LEARNED


def test_a_file_of_an_earlier_version_has_no_counts_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "h"
    saved(path)
    written = json.loads(path.read_bytes())
    del written["retries"]
    path.write_text(json.dumps(written))
    kept = History(path)
    assert kept.get(KEY) == LEARNED
    assert kept.retry(KEY.pair) == Retry(KEY.pair, 0, 0)
    count(kept, FIRST_WAIT)
    assert kept.retry(KEY.pair).n_retries == 1


@pytest.mark.parametrize("damage", ["n_answers", "n_retries"])
@pytest.mark.parametrize("value", [-1, 2**60, "many", None])
def test_a_damaged_count_costs_no_figures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, value: object
) -> None:
    path = tmp_path / "h"
    kept = saved(path)
    count(kept, 3)
    assert kept.save()
    written = json.loads(path.read_bytes())
    written["retries"][0][damage] = value
    path.write_text(json.dumps(written))
    kept = History(path)
    assert kept.get(KEY) == LEARNED
    assert kept.retry(KEY.pair) == Retry(KEY.pair, 0, 0)
    assert "are damaged" in caplog.text


@pytest.mark.parametrize("value", [None, {}, "many", 3])
def test_damaged_counts_cost_no_figures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    path = tmp_path / "h"
    saved(path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"retries": value}))
    assert History(path).get(KEY) == LEARNED
    assert "are damaged" in caplog.text


def test_a_count_is_forgotten_with_its_pair(tmp_path: Path) -> None:
    kept = saved(tmp_path / "h")
    kept.put(key(1), LEARNED)
    for pair in (KEY.pair, key(1).pair):
        count(kept, 3, pair)
    assert kept.save()
    assert kept.forget(lambda known: known == KEY) == 1
    assert History(tmp_path / "h").retry(KEY.pair).n_answers == 0
    assert History(tmp_path / "h").retry(key(1).pair).n_answers == 3


def test_a_folder_that_cannot_be_written_locks_no_pair_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file" / "history.json", None):
        kept = History(path)
        kept.put(KEY, LEARNED)
        count(kept, FIRST_WAIT)
        assert kept.save() is (path is None)
        assert kept.get(KEY) == replace(LEARNED, bands=())
        kept.put(KEY, LEARNED)
        assert kept.get(KEY) == LEARNED
        assert kept.retry(KEY.pair) == Retry(KEY.pair, 0, 1)


# --------------------------------------------------------------------------- damage


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_history_or_damage(data: bytes) -> None:
    try:
        known = history.decode_history(data)
    except ValueError:
        return
    assert isinstance(known, history.KnownHistory)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
)
WRITTEN = msgspec.json.encode(
    history.HistoryFile(1, [history.HistoryEntry(KEY, 1.0, LEARNED)], [Retry(KEY.pair, 7, 1)])
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a JSON document with each of its keys or indices."""
    for name in value if isinstance(value, dict) else range(len(value)):
        yield value, name
        if isinstance(value[name], dict | list):
            yield from places(value[name])


@given(st.data())
def test_any_value_in_any_place_is_damage_or_can_be_written_again(
    data: st.DataObject,
) -> None:
    file = msgspec.json.decode(WRITTEN)
    where, name = data.draw(st.sampled_from([*places(file)]))
    where[name] = data.draw(JSON)
    text = json.dumps(file).encode()  # msgspec writes no inf and no large integer
    try:
        known = history.decode_history(text)
    except ValueError:
        return
    msgspec.json.encode([*known.pairs.values(), *known.retries.values()])


@given(
    st.lists(
        st.builds(
            core.BandHistory,
            drafter=st.sampled_from(["model", "lookup"]),
            band=st.integers(-1, 3),
            by_confidence=st.lists(st.tuples(st.floats(), st.floats()), max_size=9).map(tuple),
            gain=st.none() | st.floats(),
            n_drafted=st.integers(),
        ),
        max_size=4,
    )
)
def test_only_possible_measurements_are_kept_and_unchanged(
    bands: list[core.BandHistory],
) -> None:
    kept = history.without_invalid(core.PairHistory(bands=tuple(bands)))
    assert set(kept.bands) <= set(bands)
    for band in kept.bands:
        assert band.gain is None or 0 < band.gain < math.inf
        assert all(0 <= mean <= 1 and weight >= 0 for mean, weight in band.by_confidence)
    text = msgspec.json.encode(history.HistoryFile(1, [history.HistoryEntry(KEY, 1.0, kept)]))
    assert history.decode_history(text).pairs[KEY].history == kept


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[" * 100_000, WRITTEN.replace(b'"version":1', b'"version":2')]
)
def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(data)
    assert History(path).get(KEY) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert path.with_name("history.json.damaged").read_bytes() == data
    saved(path)
    assert History(path).get(KEY) == LEARNED


@pytest.mark.parametrize(
    "damage",
    [
        {"key": {**msgspec.to_builtins(KEY), "n_gpu_layers": 2**63 - 1}},
        {"used_at": "yesterday"},
        {"history": None},
    ],
)
def test_a_damaged_row_does_not_affect_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: dict[str, object]
) -> None:
    path = tmp_path / "history.json"
    kept = saved(path)
    kept.put(key(1), LEARNED)
    assert kept.save()
    written = json.loads(path.read_bytes())
    written["pairs"][0] |= damage
    path.write_text(json.dumps(written))
    [left] = History(path).entries()
    assert left.history == LEARNED
    assert "ignored 1 of 2 saved entries, which are damaged" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["history.json"]


def test_a_file_of_another_size_altogether_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.json"
    saved(path)
    monkeypatch.setattr(history, "MAX_BYTES", path.stat().st_size - 1)
    assert History(path).get(KEY) is None
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    kept = History(tmp_path / "file" / "history.json")
    for _ in range(3):
        kept.put(KEY, LEARNED)
        assert not kept.save()
        assert kept.get(KEY) == LEARNED
        assert kept.entries() == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.json"
    kept = saved(path)
    kept.put(key(1), LEARNED)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert not kept.save()
    assert [p.name for p in tmp_path.iterdir()] == ["history.json"]
    assert kept.save()
    assert len(kept.entries()) == 2


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_daemon_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    kept = saved(path)
    program = (
        "import os, pathlib, signal, sys\n"
        "from specd.store.state_file import StateFile\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "StateFile(pathlib.Path(sys.argv[1]), 1000, '', bytes, b'').write({})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, path], check=False, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert History(path).get(KEY) == LEARNED
    [part] = (p for p in tmp_path.iterdir() if p != path)
    os.utime(part, (0, 0))
    kept.put(KEY, LEARNED)
    assert kept.save()
    assert [*tmp_path.iterdir()] == [path]


def test_the_file_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    kept = saved(path)
    known = kept.known()
    assert [entry.key for entry in known] == [KEY]
    assert kept.known() is known
    kept.put(key(1), LEARNED)  # not written yet
    assert {entry.key for entry in kept.known()} == {KEY, key(1)}
    assert kept.save()
    other = History(path)
    assert other.forget(lambda key: key == KEY) == 1
    assert [entry.key for entry in kept.known()] == [key(1)]
    path.unlink()
    assert kept.known() == ()


def test_without_a_file_only_this_daemon_remembers() -> None:
    kept = History(None)
    kept.put(KEY, LEARNED)
    assert kept.save()
    assert kept.get(KEY) == LEARNED
    assert kept.entries() == []
    assert kept.forget(lambda _: True) == 0


# --------------------------------------------------------------------------- keys


def test_a_blob_is_known_by_its_digest_wherever_it_lies(tmp_path: Path) -> None:
    for store in ("a", "b"):
        blob = tmp_path / store / "blobs" / f"sha256-{'0' * 64}"
        blob.parent.mkdir(parents=True)
        blob.write_text(store)
        assert file_identity(blob) == f"sha256:{'0' * 64}"


def test_a_loose_file_is_another_after_every_change(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    seen = set()
    for text, changed_ns in (("a", 1), ("ab", 1), ("ab", 2)):
        path.write_text(text)
        os.utime(path, ns=(changed_ns, changed_ns))
        seen.add(file_identity(path))
    seen.add(file_identity(path))
    path.rename(tmp_path / "n.gguf")
    seen.add(file_identity(tmp_path / "n.gguf"))
    assert len(seen) == 4


def test_a_key_has_everything_that_affects_speed(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    spec = core.EngineSpec(weights=str(tmp_path / "t"), n_threads=3, kv_cache_type="q8_0")
    made = HistoryKey.of(spec, "here")
    assert (made.drafter, made.n_threads) == ("", 3)
    assert (made.kv_cache_type, made.machine) == ("q8_0", "here")
    assert HistoryKey.of(replace(spec, drafter=str(tmp_path / "t")), "here").drafter == made.target
    # An adapter changes the acceptance of drafts, so the bare weights have another history.
    assert HistoryKey.of(replace(spec, adapters=(str(tmp_path / "t"),)), "here").adapters == (
        made.target,
    )
    with pytest.raises(FileNotFoundError):
        HistoryKey.of(replace(spec, weights=str(tmp_path / "gone")), "here")
