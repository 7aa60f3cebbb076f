"""Contract 9: the visible effects of environment variables."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import CHAT_TEMPLATE, OllamaStore, write_llama


def lay_out(root: Path, scratch: Path) -> OllamaStore:
    store = OllamaStore(root)
    weights = write_llama(scratch / "a.gguf", chat_template=CHAT_TEMPLATE)
    store.add("first", weights=weights, template="{{ .Prompt }}>{{ .Response }}")
    store.add("second", weights=write_llama(scratch / "b.gguf", seed=1))
    pooled = write_llama(scratch / "c.gguf", extra={"llama.pooling_type": 1})
    store.add("embedder", weights=pooled)
    return store


async def residents(daemon: Daemon) -> dict[str, Any]:
    async with daemon.http.get("/api/ps") as response:
        return {model["name"]: model for model in (await response.json())["models"]}


async def load(daemon: Daemon, path: str = "generate", **fields: object) -> None:
    async with daemon.http.post(f"/api/{path}", json=fields) as response:
        assert response.status == 200, await response.text()


@pytest.mark.contract(
    "env.models",
    "env.num-parallel",
    "env.max-loaded",
    "env.context-length",
    "env.keep-alive",
    "env.noprune",
    "env.quotes",
    "sched.parallel",
)
async def test_environment_variables_take_effect(tmp_path: Path) -> None:
    store = lay_out(tmp_path / "elsewhere", tmp_path)
    stray = store.blob_path("0" * 64)
    stray.touch()
    os.utime(stray, (0, 0))
    async with running(
        tmp_path,
        engine=FAKE_ENGINE,
        OLLAMA_MODELS=f" '{tmp_path / 'elsewhere'}' ",
        OLLAMA_NUM_PARALLEL='"2"',
        OLLAMA_MAX_LOADED_MODELS="1",
        OLLAMA_CONTEXT_LENGTH=" 100 ",
        OLLAMA_KEEP_ALIVE="-1",
        OLLAMA_NOPRUNE="perhaps",
    ) as daemon:
        await load(daemon, model="first")
        [(name, entry)] = (await residents(daemon)).items()
        assert (name, entry["context_length"], entry["specd"]["slots"]) == ("first:latest", 100, 2)
        assert dt.datetime.fromisoformat(entry["expires_at"]).year > 2300
        # An embedder has one slot, and only one model may be loaded.
        await load(daemon, "embed", model="embedder")
        [(name, entry)] = (await residents(daemon)).items()
        assert (name, entry["specd"]["slots"]) == ("embedder:latest", 1)
        assert stray.exists()


@pytest.mark.contract("sched.oom")
async def test_a_model_that_finds_no_memory_is_loaded_once_the_others_are_gone(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path / "models", tmp_path)
    once = tmp_path / "once"
    async with running(tmp_path, engine=FAKE_ENGINE, FAKE_OUT_OF_MEMORY=str(once)) as daemon:
        once.touch()
        async with daemon.generate("x", model="first") as response:
            assert response.status == 500
            assert "out of memory" in (await response.json())["error"]
        await load(daemon, model="first")
        once.touch()
        await load(daemon, "embed", model="embedder", input="x")
        assert not once.exists()
        assert list(await residents(daemon)) == ["embedder:latest"]
        await load(daemon, model="first")
        assert len(await residents(daemon)) == 2


@pytest.mark.contract("store.prune", "env.noprune")
async def test_without_noprune_a_start_prunes(tmp_path: Path) -> None:
    store = lay_out(tmp_path / "models", tmp_path)
    stray, young = store.blob_path("0" * 64), store.blob_path("1" * 64)
    for path in (stray, young):
        path.touch()
    os.utime(stray, (0, 0))
    async with running(tmp_path, engine=FAKE_ENGINE, OLLAMA_NOPRUNE="f"):
        assert not stray.exists()
        assert young.exists()


@pytest.mark.contract("env.go-template", "templates.choice")
@pytest.mark.parametrize(
    "setting, said", [("1", "x>"), ("0", "<|user|>x<|end|><|assistant|>"), ("auto", "x>")]
)
async def test_which_template_is_preferred(tmp_path: Path, setting: str, said: str) -> None:
    lay_out(tmp_path / "models", tmp_path)
    async with running(tmp_path, engine=FAKE_ENGINE, OLLAMA_GO_TEMPLATE=setting) as daemon:
        body = {"model": "first", "prompt": "x", "_debug_render_only": True}
        async with daemon.http.post("/api/generate", json=body) as response:
            debug = (await response.json())["_debug_info"]
    assert debug["rendered_template"] == said


@pytest.mark.contract("env.kv-cache", "env.flash-attention")
@pytest.mark.native
async def test_a_smaller_cache_is_smaller(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("m", weights=write_llama(tmp_path / "m.gguf"))
    sizes = []
    for kind, flash in (("F32", "0"), ("f16", "1")):
        async with running(
            tmp_path, OLLAMA_KV_CACHE_TYPE=kind, OLLAMA_FLASH_ATTENTION=flash
        ) as daemon:
            await load(daemon, model="m")
            sizes.append((await residents(daemon))["m:latest"]["size"])
    assert sizes[0] > sizes[1]
