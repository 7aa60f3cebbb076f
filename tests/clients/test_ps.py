"""The `ps` data of real engines: memory, speculation statistics, and the reason for no drafter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cli.specd_command import specd
from tests.daemon_process import Daemon, running
from tests.gguf_embedders import write_bert
from tests.gguf_files import (
    OllamaStore,
    byte_vocabulary,
    write_llama,
    write_mamba,
    write_truncated,
    write_vocabulary,
)

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

RULES = """
[[pair]]
target = "refused"
drafters = []
reason = "it is fast enough"
"""
REASONS = {
    "lonely": ("drafter_not_found", "lonely:latest"),
    "stranger": ("vocabulary_differs", "has another vocabulary than stranger:latest"),
    "damaged": ("drafter_unreadable", "cannot be used"),
    "hollow": ("drafter_load_failed", ""),
    "snake": ("architecture_cannot_rewind", "mamba"),
    "refused": ("refused_by_rule", "it is fast enough"),
    "embedder": ("embedding_model", "gives vectors instead of text"),
}


def lay_out(folder: Path) -> None:
    store = OllamaStore(folder / "models")
    weights = write_llama(folder / "m.gguf")
    store.add("lonely", weights=weights)
    store.add("refused", weights=write_llama(folder / "r.gguf", seed=2))
    other = write_llama(folder / "other.gguf", vocabulary=byte_vocabulary(shuffle_seed=1))
    store.add("stranger", weights=write_llama(folder / "s.gguf", seed=3), draft=other)
    store.add("damaged", weights=write_llama(folder / "d.gguf", seed=4), draft=write_cut(folder))
    # A valid header without tensors.
    hollow = write_vocabulary(folder / "hollow.gguf", architecture="llama")
    store.add("hollow", weights=write_llama(folder / "h.gguf", seed=5), draft=hollow)
    store.add("snake", weights=write_mamba(folder / "mamba.gguf"))
    store.add("embedder", weights=write_bert(folder / "bert.gguf"))
    drafter = write_llama(folder / "drafter.gguf", seed=7, noise=0.01)
    store.add("pair", weights=write_llama(folder / "p.gguf", seed=7), draft=drafter)
    (folder / "pairs.toml").write_text(RULES)


def write_cut(folder: Path) -> Path:
    path = write_llama(folder / "cut.gguf", seed=6)
    write_truncated(path)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    lay_out(folder)
    async with running(folder, SPECD_PAIRS=str(folder / "pairs.toml")) as daemon:
        yield daemon


async def load(daemon: Daemon, model: str) -> dict[str, Any]:
    """Load the model, and return its entry of ps."""
    path = "embed" if model == "embedder" else "generate"
    body = {"model": model, "input": "x"} if path == "embed" else {"model": model}
    async with daemon.http.post(f"/api/{path}", json=body) as response:
        assert response.status == 200, await response.text()
    return await said(daemon, model)


async def said(daemon: Daemon, model: str) -> dict[str, Any]:
    async with daemon.http.get("/api/ps") as response:
        models = {entry["name"]: entry for entry in (await response.json())["models"]}
    found: dict[str, Any] = models[f"{model}:latest"]
    return found


@pytest.mark.parametrize("model", REASONS)
async def test_ps_gives_the_reason_for_no_drafter(
    daemon: Daemon, model: str, tmp_path: Path
) -> None:
    entry = await load(daemon, model)
    told, (reason, words) = entry["specd"], REASONS[model]
    assert (told["drafter"], told["pair_source"], told["reason"]) == (None, None, reason)
    assert words in told["detail"]
    assert told["detail"]
    assert told["target"]["size"] == entry["size"] > 0
    printed = (await specd(daemon, "ps", model, folder=tmp_path)).decode()
    assert f"none ({reason})" in printed
    if model == "embedder":
        return
    *_, last = await daemon.answer("x", model=model, options={"num_predict": 2})
    assert (last["speculation"]["reason"], last["speculation"]["detail"]) == (
        reason,
        told["detail"],
    )


async def test_ps_gives_the_devices_of_a_pair_and_its_statistics(daemon: Daemon) -> None:
    entry = await load(daemon, "pair")
    told = entry["specd"]
    target, drafter = told["target"], told["drafter"]
    assert target["size"] + drafter["size"] == entry["size"]
    for memory in (target, drafter):
        parts = ("size_weights", "size_cache", "size_scratch")
        assert all(memory[part] > 0 for part in parts)
        assert sum(memory[part] for part in parts) == memory["size"]
        assert sum(memory["devices"].values()) == memory["size"]
    assert drafter["pair_source"] == told["pair_source"] == "manifest"
    assert (told["state"], told["gain"], told["requests"], told["reason"]) == (None, None, 0, "")
    drafted = accepted = 0
    for seed in range(2):
        options = {"num_predict": 64, "seed": seed, "num_thread": 1}
        *_, last = await daemon.answer("Hello", model="pair", options=options)
        drafted += last["speculation"]["draft_n"]
        accepted += last["speculation"]["draft_n_accepted"]
    told = (await said(daemon, "pair"))["specd"]
    assert told["state"] == last["speculation"]["state"]
    assert (told["requests"], told["draft_n"], told["draft_n_accepted"]) == (2, drafted, accepted)
    assert told["gain"] > 0
    assert (told["reason"], told["detail"]) == (
        last["speculation"]["reason"],
        last["speculation"].get("detail", ""),
    )


async def test_ps_says_that_speculation_is_switched_off(tmp_path: Path) -> None:
    lay_out(tmp_path)
    async with running(tmp_path, OLLAMA_SPECULATIVE_DECODE="0") as daemon:
        told = (await load(daemon, "pair"))["specd"]
    assert (told["state"], told["reason"], told["drafter"]) == ("off", "disabled_by_user", None)
    assert told["detail"]


async def test_show_gives_the_same_for_a_model_that_is_not_loaded(daemon: Daemon) -> None:
    for model, (reason, words) in REASONS.items():
        if model == "hollow":
            continue  # known only after a load
        async with daemon.http.post("/api/show", json={"model": model}) as response:
            told = (await response.json())["specd"]
        assert (told["drafter"], told["reason"]) == (None, reason)
        assert words in told["detail"]
    async with daemon.http.post("/api/show", json={"model": "pair"}) as response:
        told = (await response.json())["specd"]
    assert (told["pair_source"], told["reason"], told["detail"]) == ("manifest", "", "")
    assert told["drafter"]
