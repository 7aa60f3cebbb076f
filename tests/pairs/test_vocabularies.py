"""Check the cache of a machine's vocabularies, also after a restart."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from pathlib import Path

import pytest

from specd.errors import StoreError
from specd.pairs import vocabularies
from specd.pairs.vocabularies import VOCABULARIES_FILE, Vocabularies
from specd.store.gguf_metadata import read_metadata
from specd.store.shape import read_shape
from specd.store.state_file import StateFile
from tests.fakes.clock import Clock
from tests.gguf_files import VOCABULARY, byte_vocabulary, write_llama
from tests.gguf_files import Vocabulary as WrittenVocabulary

OTHER = VOCABULARY.with_token(100, "surprise")
SAID = f"token 100 is “{VOCABULARY.tokens[100]}” in one and “surprise” in the other"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / VOCABULARIES_FILE


def blob(folder: Path, vocabulary: WrittenVocabulary = VOCABULARY, seed: int = 0) -> Path:
    """Write a model as a blob, whose name is its digest; return its path."""
    path = write_llama(folder / "new.gguf", vocabulary=vocabulary, seed=seed)
    (folder / "blobs").mkdir(exist_ok=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path.rename(folder / "blobs" / f"sha256-{digest}")


def test_files_of_one_vocabulary_fit_and_others_do_not(tmp_path: Path) -> None:
    a, b, c = blob(tmp_path), blob(tmp_path, seed=1), blob(tmp_path, OTHER)
    d = blob(tmp_path, VOCABULARY.with_padding(128))
    known = Vocabularies(None)
    assert (known.fits(a, b), known.fits(a, c), known.fits(d, a)) == (True, False, True)
    assert (known.difference(a, b), known.difference(a, c)) == ("", SAID)


def test_the_facts_of_a_file_match_its_header(tmp_path: Path) -> None:
    path = blob(tmp_path)
    known = Vocabularies(None)
    assert known.read(path) == (read_metadata(path), read_shape(path))
    assert known.facts(path) == read_metadata(path)


def test_another_versions_file_is_written_anew(
    tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = blob(tmp_path)
    state.parent.mkdir()
    state.write_text('{"version": "0.0.1 1", "files": {"what": "ever"}}')
    with caplog.at_level(logging.WARNING):
        known = Vocabularies(state)
    known.facts(path)
    known.save()
    assert not caplog.messages
    assert len(json.loads(state.read_bytes())["files"]) == 1


def test_a_blob_is_read_once_ever(tmp_path: Path, state: Path) -> None:
    a, b = blob(tmp_path), blob(tmp_path, OTHER)
    first = Vocabularies(state)
    assert first.difference(a, b) == SAID
    first.save()
    for path in (a, b):  # so a second read would fail
        path.write_bytes(b"")
    again = Vocabularies(state)
    assert again.facts(a) == first.facts(a)
    assert not again.fits(a, b)
    assert again.difference(a, b) == SAID


def test_a_loose_file_is_read_again_when_it_changes(tmp_path: Path, state: Path) -> None:
    known = Vocabularies(state)
    a = write_llama(tmp_path / "a.gguf")
    b = write_llama(tmp_path / "b.gguf", vocabulary=VOCABULARY.with_token(9, "x"))
    assert known.difference(a, b)
    write_llama(b)
    os.utime(b, (1, 1))
    assert known.difference(a, b) == ""


def test_both_files_are_read_if_only_one_has_a_mark(tmp_path: Path) -> None:
    """Fingerprints cannot tell a `<think>` that may differ from one that may not."""
    at = VOCABULARY.eos + 1
    types = list(VOCABULARY.types)
    types[at] = 4
    thinks = WrittenVocabulary(
        tokens=VOCABULARY.with_token(at, "<think>").tokens,
        types=tuple(types),
        merges=VOCABULARY.merges,
        bos=VOCABULARY.bos,
        eos=VOCABULARY.eos,
    )
    known = Vocabularies(None)
    assert known.fits(blob(tmp_path, thinks), blob(tmp_path))
    changed = blob(tmp_path, thinks.with_token(at + 1, "<other>").with_token(65, "@@"))
    assert not known.fits(changed, blob(tmp_path))


def test_a_damaged_or_missing_file_is_a_store_error(tmp_path: Path, state: Path) -> None:
    known = Vocabularies(state)
    damaged = blob(tmp_path)
    damaged.write_bytes(damaged.read_bytes()[:1000])
    for path in (damaged, tmp_path / "none.gguf"):
        with pytest.raises(StoreError):
            known.facts(path)
    known.save()
    assert not state.exists()


def test_writing_takes_a_small_part_of_the_time(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, write = Clock(), StateFile.write

    def write_slowly(file: StateFile[object], data: object) -> None:
        clock.now += 1.0
        write(file, data)

    monkeypatch.setattr(StateFile, "write", write_slowly)
    known = Vocabularies(state, clock=clock)
    for seed, until, n_files in ((0, 0.0, 1), (1, 20.9, 1), (2, 21.0, 3)):
        clock.now = until
        known.facts(blob(tmp_path, seed=seed))
        known.save()
        assert len(json.loads(state.read_bytes())["files"]) == n_files
    stamp = state.stat()
    clock.now = 1000.0
    known.save()  # without changes
    assert state.stat() == stamp


def test_entries_of_another_specd_are_kept(tmp_path: Path, state: Path) -> None:
    ours, theirs = Vocabularies(state), Vocabularies(state)
    a, b = blob(tmp_path), blob(tmp_path, byte_vocabulary(shuffle_seed=1))
    theirs.facts(a)
    theirs.save()
    ours.facts(b)
    ours.save()
    assert len(json.loads(state.read_bytes())["files"]) == 2


def test_the_file_is_bounded(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabularies, "MAX_FILES", 2)
    known = Vocabularies(state)
    files = [blob(tmp_path, VOCABULARY.with_padding(n)) for n in range(4)]
    for path in files:
        known.difference(files[0], path)
    known.save()
    written = json.loads(state.read_bytes())
    assert list(written["files"]) == [f"sha256:{path.name[7:]}" for path in files[2:]]
    assert len(written["vocabularies"]) == 2
    assert written["verdicts"] == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-10],
        lambda data: data.replace(b'"version":', b'"edition":'),
        lambda data: b"null",
        lambda data: b"\xff\xfe",
        lambda data: b"[" * 100_000,
        lambda data: data.replace(b'"size":', b'"size":10'),
        lambda data: data.replace(b'"vocabulary":"', b'"vocabulary":"x'),
        lambda data: data.replace(b'"read_bytes":', b'"read_bytes":"many","was":'),
    ],
)
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    known = Vocabularies(state)
    path = blob(tmp_path)
    known.facts(path)
    known.save()
    data = damage(state.read_bytes())  # type: ignore[operator]
    assert data != state.read_bytes()
    state.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        again = Vocabularies(state)
    assert "damaged and was renamed" in caplog.text
    assert state.with_name(f"{VOCABULARIES_FILE}.damaged").read_bytes() == data
    assert again.facts(path) == known.facts(path)
    again.save()
    assert Vocabularies(state).facts(path) == known.facts(path)


def test_a_damaged_row_does_not_affect_the_others(
    tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Vocabularies(state)
    path = blob(tmp_path)
    known.facts(path)
    known.save()
    written = json.loads(state.read_bytes())
    [header] = written["files"].values()
    [fingerprint] = written["vocabularies"].values()
    written["files"] |= {"other": {**header, "facts": None}, "lost": {**header, "vocabulary": "x"}}
    written["vocabularies"]["x"] = {**fingerprint, "outline": None}
    written["verdicts"] = [["a", "b", ""], ["a", 7, ""]]
    state.write_text(json.dumps(written))
    again = Vocabularies(state)
    assert [*again.known.files.values()] == [*known.known.files.values()]
    assert [v.target for v in again.known.verdicts] == ["a"]
    assert caplog.text.count("ignored 1 of 2 saved entries, which are damaged") == 2
    assert state.exists()


def test_a_folder_that_cannot_be_used_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    known = Vocabularies(tmp_path / "file" / VOCABULARIES_FILE)
    known.facts(blob(tmp_path))
    known.save()
    [warning] = caplog.messages
    assert "cannot read the cache of vocabularies" in warning


def test_a_write_that_a_full_disk_refused_is_repeated_later(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    known = Vocabularies(state, clock=clock)
    path = blob(tmp_path)
    known.facts(path)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", no_space)
        known.save()
    known.save()
    assert not state.exists(), "the write must not be repeated at once"
    clock.now += 60
    known.save()
    assert Vocabularies(state).facts(path) == known.facts(path)
    assert [file.name for file in state.parent.iterdir()] == [VOCABULARIES_FILE]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
