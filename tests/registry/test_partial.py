"""A download's state on disk, in Ollama's format, also after crashes and damage."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import StoreError
from specd.registry.partial import Part, Partial, bytes_on_disk, layout
from specd.registry.transfer_context import Sizes

MB = 10**6
PART = Sizes().download_part


def as_ollama_reads(path: Path) -> tuple[int, list[dict[str, int]]]:
    """Return the total and the parts with which Ollama's `Prepare` would resume."""
    states = sorted(path.parent.glob(f"{path.name}-*"))
    parts = [json.loads(state.read_bytes()) for state in states]
    # At the end Ollama removes the files 0 to n - 1, and fails if one is missing.
    assert {state.name for state in states} == {f"{path.name}-{n}" for n in range(len(parts))}
    return sum(part["Size"] for part in parts), parts


def as_ollama_writes(path: Path, total: int, *parts: tuple[int, int, int]) -> None:
    """Write a partial download as Ollama does.  parts: offset, size and completed of each."""
    path.touch()
    os.truncate(path, total)
    for n, (offset, size, completed) in enumerate(parts):
        state = {"N": n, "Offset": offset, "Size": size, "Completed": completed}
        path.with_name(f"{path.name}-{n}").write_text(json.dumps(state) + "\n")


def opened(path: Path, total: int, part_size: int) -> Partial:
    files = Partial(path, total, part_size)
    try:
        files.open()
    except StoreError:
        files.close()
        raise
    return files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"sha256-{'a' * 64}-partial"


@pytest.mark.contract("pull.partial")
@pytest.mark.parametrize(
    "total,n_parts,size",
    [
        (0, 0, 0),
        (1, 1, 1),
        (100 * MB, 1, 100 * MB),
        (100 * MB + 1, 2, 100 * MB),
        (3200 * MB, 16, 200 * MB),
        (40_000 * MB, 40, 1000 * MB),
    ],
)
def test_parts_are_a_sixteenth_of_100_mb_to_1_gb(total: int, n_parts: int, size: int) -> None:
    parts = layout(total, PART(total))
    assert len(parts) == n_parts
    assert sum(part.size for part in parts) == total
    assert not parts or parts[0].size == size


@pytest.mark.contract("pull.partial")
def test_a_new_download_looks_like_ollamas(path: Path) -> None:
    files = opened(path, 250 * MB, PART(250 * MB))
    files.save([Part(0, 0, 100 * MB, 12), *files.parts[1:]])
    files.close()
    first = path.with_name(f"{path.name}-0").read_bytes()
    assert first == b'{"N":0,"Offset":0,"Size":100000000,"Completed":12}\n'
    assert as_ollama_reads(path)[0] == 250 * MB == path.stat().st_size
    assert path.stat().st_blocks == 0, "the file is sparse"


@pytest.mark.contract("pull.partial", "pull.resume")
def test_ollamas_partial_state_is_resumed(path: Path) -> None:
    as_ollama_writes(path, 1000, (0, 600, 250), (600, 400, 400))
    assert bytes_on_disk(path) == 650
    files = opened(path, 1000, PART(1000))
    assert files.parts == [Part(0, 0, 600, 250), Part(1, 600, 400, 400)]
    files.close()


def test_a_shorter_state_overwrites_a_longer_one(path: Path) -> None:
    files = opened(path, 1000, PART(1000))
    files.save([Part(0, 0, 1000, 999)])
    files.save([Part(0, 0, 1000, 1)])
    files.close()
    assert as_ollama_reads(path)[1][0]["Completed"] == 1


def test_a_state_truncated_by_a_crash_counts_as_empty(path: Path) -> None:
    """Ollama truncates a state file before it writes the new state."""
    total = 250 * MB
    as_ollama_writes(
        path, total, *((n * 100 * MB, min(100, 250 - n * 100) * MB, 7) for n in (0, 1, 2))
    )
    path.with_name(f"{path.name}-1").write_bytes(b"")
    files = opened(path, total, PART(total))
    assert [part.completed for part in files.parts] == [7, 0, 7]
    files.close()


def test_state_without_bytes_counts_for_nothing(path: Path) -> None:
    as_ollama_writes(path, 1000, (0, 1000, 900))
    path.unlink()
    assert bytes_on_disk(path) == 0
    files = opened(path, 1000, PART(1000))
    assert files.parts == [Part(0, 0, 1000, 0)]
    files.close()


def test_a_state_with_more_bytes_than_its_part_counts_as_empty(path: Path) -> None:
    as_ollama_writes(path, 1000, (0, 600, 700), (600, 400, 400))
    assert bytes_on_disk(path) == 400
    files = opened(path, 1000, PART(1000))
    assert files.parts == [Part(0, 0, 1000, 0)]
    files.close()


def test_bytes_are_synced_before_their_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(path, 1000, PART(1000))
    said: list[tuple[int, int]] = []

    def synced(opened: int) -> None:
        said.append((os.fstat(opened).st_ino, as_ollama_reads(path)[1][0]["Completed"]))

    monkeypatch.setattr(os, "fsync", synced)
    files.save([Part(0, 0, 1000, 12)])
    files.save([Part(0, 0, 1000, 12)])
    files.close()
    assert said == [(path.stat().st_ino, 0)], "once, before the state"
    assert as_ollama_reads(path)[1][0]["Completed"] == 12


def test_files_of_other_blobs_are_not_touched(path: Path) -> None:
    foreign = path.with_name(f"{path.name}-x")
    foreign.write_text("{}")
    files = opened(path, 1000, PART(1000))
    files.remove()
    files.close()
    assert list(path.parent.iterdir()) == [foreign]


def test_a_partial_file_is_locked_by_one_process(path: Path) -> None:
    files = opened(path, 1000, PART(1000))
    with pytest.raises(StoreError, match="another process is downloading sha256-aaa"):
        opened(path, 1000, PART(1000))
    files.close()
    opened(path, 1000, PART(1000)).close()


def test_the_error_of_a_full_disk_has_gos_text(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(path, 1000, PART(1000))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"no space left on device$"):
        files.write(b"x", 0)
    files.close()


def test_an_unwritable_folder_is_an_error(path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        opened(path / "none" / "x", 1000, PART(1000))


_NUMBER = st.integers(-5, 1200) | st.none() | st.just("7") | st.just(1.5) | st.booleans()
_STATE = st.one_of(
    st.binary(max_size=20),
    st.fixed_dictionaries(
        {"N": _NUMBER, "Offset": _NUMBER, "Size": _NUMBER, "Completed": _NUMBER}
    ).map(lambda state: json.dumps(state).encode()),
    st.integers(0, 9).map(
        lambda n: json.dumps({"N": n, "Offset": n * 100, "Size": 100, "Completed": n * 7}).encode()
    ),
)


@given(
    states=st.dictionaries(st.integers(0, 12), _STATE),
    total=st.integers(0, 1000),
    size=st.none() | st.integers(0, 1200),
)
def test_any_leftover_files_become_a_valid_download(
    states: dict[int, bytes], total: int, size: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sha256-b-partial"
        if size is not None:
            path.write_bytes(bytes(size))
        for number, state in states.items():
            path.with_name(f"{path.name}-{number}").write_bytes(state)
        files = opened(path, total, 100)
        files.close()
        end = 0
        for part in files.parts:
            assert part.offset == end
            assert 0 <= part.completed <= part.size
            assert part.completed <= max(0, (size or 0) - part.offset), "no byte that never came"
            end = part.end
        assert end == total == path.stat().st_size
        assert as_ollama_reads(path) == (
            total,
            [
                {"N": p.number, "Offset": p.offset, "Size": p.size, "Completed": p.completed}
                for p in sorted(files.parts, key=lambda part: str(part.number))
            ],
        )


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_has_gos_text(
    path: Path, monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(full, os.strerror(full))

    files = opened(path, 1000, PART(1000))
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", no_room)
        with pytest.raises(StoreError, match=r"write .*-partial: no space left on device"):
            files.write(b"more", 0)
    files.write(b"more", 0)
    files.close()
