"""A blob that comes in piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from specd.errors import InvalidRequest, StoreError
from specd.store import StoreWriter
from specd.store.blob_upload import receive
from tests.store.manifests import digest

DATA = b"0123456789"


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    return StoreWriter(tmp_path)


async def test_the_pieces_become_a_blob(writer: StoreWriter) -> None:
    await receive(writer, digest(DATA), pieces(DATA[:3], b"", DATA[3:]))
    await receive(writer, digest(DATA), pieces(DATA))
    assert [path.read_bytes() for path in (writer.root / "blobs").iterdir()] == [DATA]


async def test_others_than_were_announced(writer: StoreWriter) -> None:
    with pytest.raises(InvalidRequest, match="digest mismatch, expected"):
        await receive(writer, digest(DATA), pieces(DATA[:3]))
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_an_upload_that_is_cancelled_leaves_nothing(writer: StoreWriter) -> None:
    waiting = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield DATA[:3]
        waiting.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(receive(writer, digest(DATA), half()))
    await waiting.wait()
    assert len(list((writer.root / "blobs").iterdir())) == 1
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_an_upload_that_is_cancelled_while_its_file_is_opened(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on, plain = threading.Event(), threading.Event(), StoreWriter.staged

    @contextlib.contextmanager
    def slow(self: StoreWriter) -> Iterator[Path]:
        opening.set()
        assert go_on.wait(30)
        with plain(self) as path:
            yield path

    monkeypatch.setattr(StoreWriter, "staged", slow)
    upload = asyncio.create_task(receive(writer, digest(DATA), pieces(DATA)))
    assert await asyncio.to_thread(opening.wait, 30)
    upload.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not list((writer.root / "blobs").iterdir())


@pytest.fixture
def small_disk() -> Iterator[None]:
    """A file can have 5 bytes: of a longer write the system takes as much, and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.contract("store.atomic")
@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("sent", [(DATA,), (DATA[:3], DATA[3:]), (DATA * 10**5,)])
async def test_a_full_disk(writer: StoreWriter, sent: tuple[bytes, ...]) -> None:
    with pytest.raises(StoreError, match=f"cannot write the blob: {os.strerror(errno.EFBIG)}"):
        await receive(writer, digest(b"".join(sent)), pieces(*sent))
    assert not list((writer.root / "blobs").iterdir())
