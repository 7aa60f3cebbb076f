"""A blob that comes in piece by piece."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specd.errors import InvalidRequest, StoreError
from specd.store import Writer, receive
from tests.store.manifests import digest

DATA = b"0123456789"


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


async def test_the_pieces_become_a_blob(writer: Writer) -> None:
    await receive(writer, digest(DATA), pieces(DATA[:3], b"", DATA[3:]))
    await receive(writer, digest(DATA), pieces(DATA))
    assert [path.read_bytes() for path in (writer.root / "blobs").iterdir()] == [DATA]


async def test_others_than_were_announced(writer: Writer) -> None:
    with pytest.raises(InvalidRequest, match="digest mismatch, expected"):
        await receive(writer, digest(DATA), pieces(DATA[:3]))
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_an_upload_that_is_cancelled_leaves_nothing(writer: Writer) -> None:
    waiting = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield DATA[:3]
        waiting.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(receive(writer, digest(DATA), half()))
    await waiting.wait()
    assert [path.stat().st_size for path in (writer.root / "blobs").iterdir()] == [3]
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_a_full_disk(writer: Writer) -> None:
    """/dev/full takes the place of the disk."""

    async def first_and_more() -> AsyncIterator[bytes]:
        yield DATA[:3]
        path = next((writer.root / "blobs").iterdir())
        full = os.open("/dev/full", os.O_WRONLY)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            opened = Path("/proc/self/fd") / name
            if opened.is_symlink() and opened.readlink() == path:
                os.dup2(full, int(name))
        os.close(full)
        yield DATA[3:]

    with pytest.raises(StoreError, match=f"cannot write the blob: {os.strerror(errno.ENOSPC)}"):
        await receive(writer, digest(DATA), first_and_more())
    assert not list((writer.root / "blobs").iterdir())
