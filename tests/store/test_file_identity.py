"""Files are read once per content, damaged ones too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specd.errors import StoreError
from specd.store.file_identity import FileCache


def test_a_file_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    path, reads = tmp_path / "file", list[str]()

    def read(path: Path) -> str:
        reads.append(path.read_text())
        return reads[-1]

    cache = FileCache(read)
    path.write_text("one")
    assert [cache.get(path), cache.get(path)] == ["one", "one"]
    path.write_text("two!")
    assert cache.get(path) == "two!"
    os.utime(path, ns=(1, 1))
    assert cache.get(path) == "two!"
    assert reads == ["one", "two!", "two!"]


def test_a_cached_error_is_raised_as_a_new_exception(tmp_path: Path) -> None:
    path, reads = tmp_path / "file", list[Path]()
    path.write_text("x")

    def read(path: Path) -> str:
        reads.append(path)
        raise StoreError("damaged")

    cache: FileCache[str] = FileCache(read)
    errors = []
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged") as refused:
            cache.get(path)
        errors.append(refused.value)
    assert len(reads) == 1
    assert errors[0] is not errors[1]


def test_a_missing_file_is_a_store_error(tmp_path: Path) -> None:
    cache = FileCache(Path.read_text)
    with pytest.raises(StoreError, match="No such file"):
        cache.get(tmp_path / "none")
