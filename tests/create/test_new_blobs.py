"""Blobs of an unfinished model while other creates remove unused blobs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from specd.create.model_parts import NewBlobs
from specd.errors import StoreError
from specd.store import StoreWriter


class Losing(StoreWriter):
    """Writer whose first blobs another create removes right after they are written."""

    def __init__(self, root: Path, n_lost: int) -> None:
        super().__init__(root)
        self.n_left = n_lost
        self.n_put = 0
        self.discarded: set[str] = set()

    def put(self, data: bytes) -> tuple[str, bool]:
        self.n_put += 1
        digest, is_new = super().put(data)
        if self.n_left > 0:
            self.n_left -= 1
            self.blob_path(digest).unlink()
        return digest, is_new

    def discard(self, digests: Iterable[str]) -> None:
        self.discarded |= set(digests)
        super().discard(digests)


@pytest.mark.parametrize("n_lost", [0, 1, 2])
async def test_a_blob_removed_before_its_lock_is_written_again(tmp_path: Path, n_lost: int) -> None:
    writer = Losing(tmp_path, n_lost)
    new = NewBlobs(writer)
    part = new.put("license", b"free")
    assert writer.n_put == n_lost + 1
    assert writer.blob_path(part.layer.digest).read_bytes() == b"free"
    # The blob is locked, so other creates cannot remove it.
    writer.discard([part.layer.digest])
    assert writer.has_blob(part.layer.digest)
    await new.discard()
    assert not writer.has_blob(part.layer.digest)


async def test_a_blob_that_is_always_removed_is_an_error(tmp_path: Path) -> None:
    writer = Losing(tmp_path, 100)
    new = NewBlobs(writer)
    with pytest.raises(StoreError, match="use the blob sha256:"):
        new.put("license", b"free")
    assert writer.n_put == 3
    await new.discard()


async def test_kept_blobs_are_not_discarded(tmp_path: Path) -> None:
    writer = Losing(tmp_path, 0)
    new = NewBlobs(writer)
    kept, left = new.put("license", b"free"), new.put("license", b"not free")
    new.keep([kept])
    await new.discard()
    assert writer.discarded == {left.layer.digest}
    assert (writer.has_blob(kept.layer.digest), writer.has_blob(left.layer.digest)) == (True, False)
