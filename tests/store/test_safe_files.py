"""Reads of whole files up to a limit, which also holds for a file that grows."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from specd.store import safe_files


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert safe_files.read(path, 4) == b"1234"
    with pytest.raises(safe_files.UnusableFile, match="more than 3 bytes"):
        safe_files.read(path, 3)


def test_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    refused: list[safe_files.UnusableFile] = []
    reading = threading.Thread(target=_read, args=(path, refused), daemon=True)
    reading.start()
    reading.join(10)
    was_waiting = reading.is_alive()
    if was_waiting:  # open the other end
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        reading.join()
    assert not was_waiting
    [error] = refused
    assert error.errno == errno.EINVAL
    assert "it is not a file" in str(error)


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_changed_before_it_was_locked_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    path, new = tmp_path / "blob", tmp_path / "new"
    path.write_bytes(b"damaged")
    new.write_bytes(b"whole")
    flock, lock = fcntl.flock, contextlib.ExitStack()

    def replaced_first(opened: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        if exists:
            new.replace(path)
            lock.enter_context(safe_files.shared_lock(path))
        else:
            path.unlink()
        flock(opened, how)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    with lock:
        assert safe_files.remove_if_unlocked(path) is not exists
    assert path.exists() is exists


def _read(path: Path, refused: list[safe_files.UnusableFile]) -> None:
    try:
        safe_files.read(path, 4)
    except safe_files.UnusableFile as error:
        refused.append(error)


def test_a_file_that_grows_during_the_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    seen = path.stat()

    def look_and_grow(_: int) -> os.stat_result:
        """Return the size before the file grew."""
        with path.open("ab") as file:
            file.write(b"5678")
        return seen

    monkeypatch.setattr(os, "fstat", look_and_grow)
    with pytest.raises(safe_files.UnusableFile, match="more than 6 bytes"):
        safe_files.read(path, 6)
