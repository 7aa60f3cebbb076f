"""Digests and the files they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.errors import StoreError
from specd.store import blobs

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("digest", [f"sha256:{HEX}", f"sha256-{HEX}", f"sha256:{HEX.upper()}"])
def test_a_digest_names_one_file(tmp_path: Path, digest: str) -> None:
    assert blobs.path_of(tmp_path, digest) == tmp_path / "blobs" / f"sha256-{HEX}"


@pytest.mark.parametrize("digest", ["", HEX, "sha256:../../etc/passwd", f"sha256:{HEX}0", "md5:0"])
def test_text_that_is_no_digest_raises_store_error(tmp_path: Path, digest: str) -> None:
    with pytest.raises(StoreError, match="is not a digest"):
        blobs.path_of(tmp_path, digest)


def test_a_missing_blob_is_a_store_error(tmp_path: Path) -> None:
    for read in (blobs.read_text, blobs.modified_at):
        with pytest.raises(StoreError, match="No such file"):
            read(tmp_path / "none")
