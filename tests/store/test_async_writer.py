"""Uploads of blobs in chunks."""

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
from specd.store import AsyncWriter, StoreWriter
from tests.store.manifests import digest

DATA = b"0123456789"


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    return StoreWriter(tmp_path)


async def test_received_chunks_become_a_blob(writer: StoreWriter) -> None:
    await AsyncWriter(writer).receive(digest(DATA), pieces(DATA[:3], b"", DATA[3:]))
    await AsyncWriter(writer).receive(digest(DATA), pieces(DATA))
    assert [path.read_bytes() for path in (writer.root / "blobs").iterdir()] == [DATA]


async def test_a_wrong_digest_is_refused(writer: StoreWriter) -> None:
    with pytest.raises(InvalidRequest, match="digest mismatch, expected"):
        await AsyncWriter(writer).receive(digest(DATA), pieces(DATA[:3]))
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_a_cancelled_upload_leaves_no_file(writer: StoreWriter) -> None:
    waiting = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield DATA[:3]
        waiting.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(AsyncWriter(writer).receive(digest(DATA), half()))
    await waiting.wait()
    assert len(list((writer.root / "blobs").iterdir())) == 1
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not list((writer.root / "blobs").iterdir())


@pytest.mark.contract("store.atomic")
async def test_an_upload_cancelled_while_its_file_opens_leaves_no_file(
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
    upload = asyncio.create_task(AsyncWriter(writer).receive(digest(DATA), pieces(DATA)))
    assert await asyncio.to_thread(opening.wait, 30)
    upload.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not list((writer.root / "blobs").iterdir())


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit files to 5 bytes: the system takes that many of a longer write and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.contract("store.atomic")
@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("sent", [(DATA,), (DATA[:3], DATA[3:]), (DATA * 10**5,)])
async def test_a_full_disk_fails_the_upload(writer: StoreWriter, sent: tuple[bytes, ...]) -> None:
    with pytest.raises(StoreError, match=f"cannot write the blob: {os.strerror(errno.EFBIG)}"):
        await AsyncWriter(writer).receive(digest(b"".join(sent)), pieces(*sent))
    assert not list((writer.root / "blobs").iterdir())
