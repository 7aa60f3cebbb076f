"""A full disk: the request gets an error, stored data stays intact, and a retry succeeds."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from gguf import LlamaFileType

from specd.engine.trace import TraceReader
from specd.pairs.history import HISTORY_FILE
from specd.registry.partial import bytes_on_disk
from specd.store import StoreWriter
from tests.faults.disks import MIB, Answer, Served, filled, served, small_disk, small_files
from tests.gguf_files import write_llama
from tests.registry.fake_registry import FakeRegistry, Fault, digest_of
from tests.registry.oci_registry import NoRegistry, serving
from tests.registry.test_oci_registry import a_model
from tests.store.manifests import check_whole

LARGE: Final = random.Random(7).randbytes(20 * MIB)
SMALLER: Final = LARGE[: 2 * MIB]
LONG: Final = "Be brief. " * 30_000

NO_ROOM: Final = "no space left on device"

Request = Callable[[], Awaitable[Answer]]


async def test_a_file_size_limit_fails_writes_like_a_full_disk(tmp_path: Path) -> None:
    """Only the system's error text differs."""
    async with FakeRegistry().serve() as registry, served(tmp_path) as here:
        registry.add("me/pulled/x", SMALLER)
        await here.is_well()
        before = check_whole(here.store.root)
        with small_files(here.daemon, 200_000):
            for request in writing(here, registry.name("me/pulled/x")):
                assert "file too large" in (await request()).error.lower()
            said = [line for line in here.log().splitlines() if line.endswith(": File too large")]
            assert len(said) == 3, "the log must have each reason once"
            assert check_whole(here.store.root) == before
            await here.is_well()
        for request in writing(here, registry.name("me/pulled/x")):
            assert (await request()).done
        assert here.left_over() == []
        assert (await here.post("/api/show", model="made")).lines[0]["system"] == LONG
        await here.is_well("m", "other", "made")


@pytest.mark.system
async def test_a_full_disk_refuses_every_write_and_a_delete_frees_space(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "models", 16 * MIB):
        async with FakeRegistry().serve() as registry, served(tmp_path) as here:
            registry.add("me/pulled/x", SMALLER)
            await here.is_well()
            before = check_whole(here.store.root)

            def copy() -> Awaitable[Answer]:
                return here.post("/api/copy", source="m", destination="copied")

            requests = [*writing(here, registry.name("me/pulled/x")), copy]
            with filled(here.store.root):
                for request in requests:
                    assert NO_ROOM in (await request()).error.lower()
                assert check_whole(here.store.root) == before
                assert here.left_over() == []
                await here.is_well()
                assert (await here.ask("DELETE", "/api/delete", model="other")).done
                assert (await copy()).done
            for request in requests:
                assert (await request()).done
            assert here.left_over() == []
            await here.is_well("m", "made", "copied")


@pytest.mark.system
async def test_a_disk_that_fills_up_fails_a_pull_which_resumes_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "models", 32 * MIB):
        async with FakeRegistry().serve() as registry, served(tmp_path) as here:
            registry.add("me/pulled/x", LARGE)
            go_on = asyncio.Event()
            registry.faults.extend([paused(5_000_000, go_on)] * 2)
            body = {"model": registry.name("me/pulled/x"), "insecure": True}
            pulling = asyncio.ensure_future(here.post("/api/pull", **body))
            partial = StoreWriter(here.store.root).partial_path(digest_of(LARGE))
            while not bytes_on_disk(partial) >= 5_000_000:
                assert not pulling.done()
                await here.daemon.answer("and others are answered")
            with filled(here.store.root):
                go_on.set()
                assert NO_ROOM in (await pulling).error
                assert NO_ROOM in (await here.post("/api/pull", **body)).error
            assert bytes_on_disk(partial) >= 5_000_000, "the downloaded part is kept"
            assert await here.names() == ["m:latest", "other:latest"]
            registry.seen.clear()
            assert (await here.post("/api/pull", **body)).done
            starts = [int(asked[6:].split("-")[0]) for asked in registry.fetches(LARGE)]
            assert min(starts) >= 5_000_000, "the download continues"
            check_whole(here.store.root)
            assert here.left_over() == []
            await here.is_well()


@pytest.mark.system
async def test_a_pull_from_a_real_registry_fails_without_disk_space(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    try:
        async with serving(tmp_path / "registry") as address:
            name = f"{address}/me/small:x"
            a_model(tmp_path / "there" / "models", name)
            async with served(tmp_path / "there") as there:
                assert (await there.post("/api/push", model=name, insecure=True)).done
            with small_disk(tmp_path / "models", 2 * MIB):
                async with served(tmp_path) as here:
                    with filled(here.store.root, free=4096):
                        refused = await here.post("/api/pull", model=name, insecure=True)
                        assert refused.lines[0] == {"status": "pulling manifest"}
                        assert NO_ROOM in refused.error
                        assert await here.names() == ["m:latest", "other:latest"]
                    assert (await here.post("/api/pull", model=name, insecure=True)).done
                    await here.is_well("m", name)
                    assert here.left_over() == []
    except NoRegistry as error:
        pytest.skip(f"no OCI registry to test with: {error}")


@pytest.mark.system
@pytest.mark.native
async def test_a_quantization_fails_without_disk_space(tmp_path: Path) -> None:
    from_file = write_llama(tmp_path / "f32.gguf", file_type=LlamaFileType.ALL_F32)
    data = from_file.read_bytes()
    with small_disk(tmp_path / "models", 4 * MIB):
        async with served(tmp_path, engine=()) as here:
            assert (await here.upload(data)).done
            body = {"model": "made", "files": {"f.gguf": digest_of(data)}, "quantize": "F16"}
            with filled(here.store.root, free=8192):
                refused = await here.post("/api/create", **body)
                assert refused.error.startswith("quantizing to F16 failed: no space left on device")
                assert here.left_over() == []
            assert (await here.post("/api/create", **body)).done
            assert here.left_over() == []
            check_whole(here.store.root)
            said = await here.daemon.answer("Hello", model="made", options={"num_predict": 2})
            assert said[-1]["eval_count"] == 2


# --------------------------------------------------------------------------- what is learned


@pytest.mark.system
async def test_statistics_wait_for_disk_space_and_one_warning_is_logged(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", MIB):
        with filled(tmp_path / "state"):
            async with served(tmp_path) as here:
                for _ in range(3):
                    await here.is_well()
                    await here.post("/api/generate", model="m", keep_alive=0)
                await ended(here)
            log = here.log()
            assert log.count("cannot write the history of pairs") == 1
            assert log.count("cannot write memory corrections") <= 1
            assert log.count("cannot write the cache of vocabularies") <= 1
            assert [path.name for path in (tmp_path / "state").iterdir()] == [".filler"]
        async with served(tmp_path) as here:
            await here.is_well()
            await ended(here)
        history = json.loads((tmp_path / "state" / HISTORY_FILE).read_bytes())
        assert len(history["pairs"]) == 2


@pytest.mark.system
@pytest.mark.native
async def test_a_trace_without_disk_space_changes_no_answer(tmp_path: Path) -> None:
    with small_disk(tmp_path / "traces", MIB):
        tracing = {"SPECD_TRACE_DIR": str(tmp_path / "traces")}
        with filled(tmp_path / "traces"):
            async with served(tmp_path, engine=(), **tracing) as here:
                options = {"num_predict": 8, "temperature": 0}
                said = await here.daemon.answer("Hello", options=options)
                assert said[-1]["eval_count"] == 8
                assert here.log().count("speculation is not traced (SPECD_TRACE_DIR)") == 1
        async with served(tmp_path, engine=(), **tracing) as here:
            again = await here.daemon.answer("Hello", options=options)
            assert [line["response"] for line in again] == [line["response"] for line in said]
        *_, last = sorted((tmp_path / "traces").iterdir(), key=lambda path: path.stat().st_mtime)
        with last.open("rb") as file:
            assert [*TraceReader(file).calls()]


# --------------------------------------------------------------------------- requests


def writing(here: Served, pulled: str) -> list[Request]:
    """Return the requests that write more than a few bytes."""
    return [
        lambda: here.upload(SMALLER[1:]),
        lambda: here.post("/api/pull", model=pulled, insecure=True),
        lambda: here.post("/api/create", **{"model": "made", "from": "m", "system": LONG}),
    ]


async def ended(here: Served) -> None:
    """Stop the daemon normally, so that it saves its learned state."""
    here.daemon.process.terminate()
    assert await here.daemon.process.wait() == 0


def paused(n: int, go_on: asyncio.Event) -> Fault:
    """Return a fault that sends n bytes, and the rest once `go_on` is set."""

    async def answer(request: web.Request, data: bytes, _: int) -> web.StreamResponse:
        response = web.StreamResponse(status=206)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[:n])
        await go_on.wait()
        await response.write(data[n:])
        return response

    return answer
