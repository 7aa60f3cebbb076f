"""Read-only or lost disks, and models that are deleted or replaced during an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specd.store import StoreWriter
from tests.faults.disks import Served, add_models, mounted, read_only, served, unmount
from tests.faults.test_disk_full import SMALLER, paused
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.fake_registry import FakeRegistry, digest_of
from tests.store.manifests import check_whole

NOT_FOUND = "model 'm' not found"


@contextlib.asynccontextmanager
async def under_way(here: Served, model: str = "m") -> AsyncIterator[Any]:
    """Yield a function that returns the next word of an endless answer."""
    asked = asyncio.ensure_future(here.daemon.generate("drip", model=model).__aenter__())
    while not asked.done():
        await here.daemon.answer("x", model=model)
    async with asked.result() as response:

        async def next_word() -> str:
            return str(json.loads(await response.content.readline())["response"])

        yield next_word


@pytest.mark.system
async def test_a_read_only_store_refuses_every_write_and_serves_its_models(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    add_models(store, tmp_path)
    before = check_whole(store.root)
    with read_only(store.root):
        async with FakeRegistry().serve() as registry, served(tmp_path) as here:
            registry.add("me/pulled/x", SMALLER)
            assert here.log().count("no model can be pulled, created or deleted: ") == 1
            answers = [
                await here.upload(SMALLER),
                await here.post("/api/pull", model=registry.name("me/pulled/x"), insecure=True),
                await here.post("/api/create", **{"model": "n", "from": "m", "system": "x"}),
                await here.post("/api/copy", source="m", destination="n"),
                await here.ask("DELETE", "/api/delete", model="other"),
            ]
            for said in answers:
                assert "read-only file system" in said.error.lower(), said
            assert await here.names() == ["m:latest", "other:latest"]
            assert (await here.post("/api/show", model="m")).status == 200
            await here.is_well()
    assert check_whole(store.root) == before


@pytest.mark.system
async def test_a_read_only_state_folder_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with read_only(tmp_path / "state"):
        async with served(tmp_path) as here:
            for _ in range(3):
                await here.is_well()
                await here.post("/api/generate", model="m", keep_alive=0)
            here.daemon.process.terminate()
            assert await here.daemon.process.wait() == 0
        for what in ("the history of pairs", "memory corrections", "the cache of vocabularies"):
            assert here.log().count(f"cannot write {what}") <= 1
        assert "cannot write the history of pairs" in here.log()


@pytest.mark.system
async def test_a_store_that_is_unmounted_and_mounted_again_is_used_again(tmp_path: Path) -> None:
    """A network disk or an unplugged disk behaves like this."""
    add_models(OllamaStore(tmp_path / "disk"), tmp_path)
    with contextlib.ExitStack() as mounts:
        mounts.enter_context(mounted(tmp_path / "models", "--bind", str(tmp_path / "disk")))
        async with served(tmp_path) as here:
            await here.is_well()
            async with under_way(here) as next_word:
                unmount(tmp_path / "models")
                said = await here.post("/api/generate", model="m", prompt="drop")
                assert (said.status, said.error) == (404, NOT_FOUND)
                assert await here.names() == ["specd-demo:latest"]
                assert (await here.post("/api/show", model="m")).status == 404
                mounts.enter_context(mounted(tmp_path / "models", "--bind", str(tmp_path / "disk")))
                assert await here.names() == ["m:latest", "other:latest"]
                await here.is_well()
                assert await next_word() == "drop ", "the loaded engine needs no file of the store"
    check_whole(tmp_path / "disk")


async def test_a_model_deleted_during_an_answer_finishes_that_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        weights = here.store.weights_path("m").read_bytes()
        async with under_way(here) as next_word:
            assert (await here.ask("DELETE", "/api/delete", model="m")).done
            assert not here.store.blob_path(digest_of(weights)).exists()
            said = await here.post("/api/generate", model="m", prompt="x")
            assert (said.status, said.error) == (404, NOT_FOUND)
            assert await here.names() == ["other:latest"]
            await here.daemon.answer("x", model="other")
            # The same bytes are stored again: the engine that has them keeps running.
            here.store.add("m", weights=tmp_path / "m.gguf")
            await here.daemon.answer("x")
            assert await next_word() == "drop "
        await here.is_well()


@pytest.mark.system
async def test_a_model_replaced_during_an_answer_finishes_that_answer(tmp_path: Path) -> None:
    async with FakeRegistry().serve() as registry, served(tmp_path) as here:
        name = registry.name("me/m/x")
        old, new = (
            write_llama(tmp_path / f"{seed}.gguf", chat_template=None, seed=seed).read_bytes()
            for seed in (5, 6)
        )
        registry.add("me/m/x", old)
        assert (await here.post("/api/pull", model=name, insecure=True)).done
        async with under_way(here, name) as next_word:
            registry.add("me/m/x", new)
            assert (await here.post("/api/pull", model=name, insecure=True)).done
            assert not here.store.blob_path(digest_of(old)).exists()
            await here.is_well("m", name)
            # Requests for the old bytes under another name use the engine that has them.
            here.store.add("old", weights=tmp_path / "5.gguf")
            await here.daemon.answer("x", model="old")
            assert await next_word() == "drop "
        check_whole(here.store.root)


@pytest.mark.system
async def test_a_start_keeps_the_partial_downloads_of_another_daemon(tmp_path: Path) -> None:
    large, go_on = SMALLER, asyncio.Event()
    async with FakeRegistry().serve() as registry, served(tmp_path) as here:
        registry.add("me/pulled/x", b"first layer", large)
        registry.faults.append(paused(len(large) // 2, go_on))
        body = {"model": registry.name("me/pulled/x"), "insecure": True}
        pulling = asyncio.ensure_future(here.post("/api/pull", **body))
        partial = StoreWriter(here.store.root).partial_path(digest_of(large))
        while not partial.exists():
            assert not pulling.done()
            await here.daemon.answer("x")
        for path in (here.store.root / "blobs").iterdir():
            os.utime(path, (0, 0))
        (tmp_path / "second").mkdir()
        models = str(here.store.root)
        async with served(tmp_path / "second", OLLAMA_MODELS=models) as second:
            assert "removed" not in second.log()
            assert await second.names() == ["m:latest", "other:latest"]
            go_on.set()
            assert (await pulling).done
            assert len(await second.names()) == 3
            # Each daemon removes what the other has made.
            assert (await second.ask("DELETE", "/api/delete", model=body["model"])).done
            assert len(await here.names()) == 2
        check_whole(here.store.root)
        assert here.left_over() == []
        await here.is_well()


@pytest.mark.system
async def test_file_times_in_the_future_change_nothing(tmp_path: Path) -> None:
    """A wrong system clock leaves such files."""
    store = OllamaStore(tmp_path / "models")
    add_models(store, tmp_path)
    (tmp_path / "state").mkdir()
    for path in (store.root, *store.root.rglob("*"), tmp_path / "state"):
        os.utime(path, (4e9, 4e9))
    async with served(tmp_path) as here:
        assert await here.names() == ["m:latest", "other:latest"]
        await here.is_well()
        assert (await here.post("/api/copy", source="m", destination="new")).done
        assert await here.names() == ["m:latest", "new:latest", "other:latest"]
        assert (await here.ask("DELETE", "/api/delete", model="other")).done
        assert await here.names() == ["m:latest", "new:latest"]
        await here.is_well("m", "new")
