"""Files that are read whole, within a bound that holds to the end of the reading."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from specd.store import safe_open


def test_up_to_its_bound_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert safe_open.read(path, 4) == b"1234"
    with pytest.raises(safe_open.UnusableFile, match="more than 3 bytes"):
        safe_open.read(path, 3)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    refused: list[safe_open.UnusableFile] = []
    reading = threading.Thread(target=_read, args=(path, refused), daemon=True)
    reading.start()
    reading.join(10)
    was_waiting = reading.is_alive()
    if was_waiting:  # what it waits for
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        reading.join()
    assert not was_waiting
    [error] = refused
    assert error.errno == errno.EINVAL
    assert "it is not a file" in str(error)


def _read(path: Path, refused: list[safe_open.UnusableFile]) -> None:
    try:
        safe_open.read(path, 4)
    except safe_open.UnusableFile as error:
        refused.append(error)


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    seen = path.stat()

    def look_and_grow(_: int) -> os.stat_result:
        """The size before it grew, whoever asks."""
        with path.open("ab") as file:
            file.write(b"5678")
        return seen

    monkeypatch.setattr(os, "fstat", look_and_grow)
    with pytest.raises(safe_open.UnusableFile, match="more than 6 bytes"):
        safe_open.read(path, 6)
