"""The demo pair inside the package."""

from __future__ import annotations

import zipfile
from pathlib import Path

from specd.store.demo import demo_in
from tests.gguf_files import write_llama


def test_a_folder_with_both_files_holds_the_pair(tmp_path: Path) -> None:
    target, drafter = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    write_llama(target)
    assert demo_in(tmp_path) is None
    write_llama(drafter, seed=1)
    stored = demo_in(tmp_path)
    assert stored is not None
    assert (stored.weights, stored.paths("draft")) == (target, (drafter,))
    assert stored.size_bytes == target.stat().st_size + drafter.stat().st_size
    assert len(stored.digest) == 64


def test_an_archive_holds_no_usable_pair(tmp_path: Path) -> None:
    path = tmp_path / "package.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo/target.gguf", "")
    with zipfile.ZipFile(path) as archive:
        assert demo_in(zipfile.Path(archive, "demo/")) is None
