"""Real daemons push to, and pull from, Docker's registry."""

from __future__ import annotations

import asyncio
import filecmp
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import ollama
import pytest

from specd.store import StoreWriter
from specd.store import name as names
from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.conftest import Client
from tests.registry.fake_registry import FakeRegistry, digest_of, stall
from tests.registry.oci_registry import NoRegistry, serving
from tests.registry.test_partial import as_ollama_reads

#: Two spans, the first of 16 MiB.
LARGE = random.Random(3).randbytes(20 * 2**20)


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    try:
        async with serving(tmp_path / "registry") as address:
            yield address
    except NoRegistry as error:
        pytest.skip(f"no OCI registry to test with: {error}")


def a_model(root: Path, name: str) -> None:
    OllamaStore(root).add(
        "made",
        weights=write_llama(root.parent / "weights.gguf"),
        template="{{ .Prompt }}",
        params={"temperature": 0.5},
        license=("one", "two"),
        system="Be brief.",
    )
    StoreWriter(root).copy(names.parse("made"), names.parse(name))
    StoreWriter(root).delete(names.parse("made"))


def assert_same(one: Path, other: Path) -> None:
    """Compare two stores byte for byte."""
    compared = filecmp.dircmp(one, other)
    assert (compared.left_only, compared.right_only, compared.funny_files) == ([], [], [])
    assert filecmp.cmpfiles(one, other, compared.common_files, shallow=False)[1:] == ([], [])
    for folder in compared.common_dirs:
        assert_same(one / folder, other / folder)


async def lines_of(daemon: Daemon, path: str, **body: Any) -> list[dict[str, Any]]:
    async with daemon.http.post(path, json=body) as response:
        assert response.status == 200
        return [json.loads(line) async for line in response.content]


@pytest.mark.contract("push.registry")
async def test_a_pushed_model_is_pulled_byte_for_byte(
    address: str, tmp_path: Path, clients: Callable[[str], Client]
) -> None:
    name = f"{address}/me/small:x"
    a_model(tmp_path / "here", name)
    here, there = clients("here"), clients("there")
    await here.push(name)
    assert (await here.push(name))[-1].status == "success", "once more, and nothing is sent"
    await there.pull(name)
    assert_same(here.root, there.root)


@pytest.mark.native
async def test_a_pulled_model_answers(address: str, tmp_path: Path) -> None:
    name = f"{address}/me/small:x"
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    a_model(tmp_path / "here" / "models", name)
    async with running(tmp_path / "here", engine=FAKE_ENGINE) as daemon:
        lines = await lines_of(daemon, "/api/push", model=name, insecure=True)
        assert lines[-1] == {"status": "success"}
    async with running(tmp_path / "there") as daemon, ollama.AsyncClient(daemon.url) as client:
        pull = await client.pull(name, insecure=True, stream=True)
        said = [part.status async for part in pull]
        assert (said[0], said[-1]) == ("pulling manifest", "success")
        answer = await client.generate(name, "Hello", options={"num_predict": 4})
        assert answer.eval_count == 4


@pytest.mark.contract("pull.resume")
async def test_a_pull_resumes_after_the_daemon_was_killed(
    remote: FakeRegistry, tmp_path: Path
) -> None:
    remote.add("me/large/x", LARGE)
    name, stalled = remote.name("me/large/x"), asyncio.Event()
    models = tmp_path / "models"
    partial = models / "blobs" / f"{digest_of(LARGE).replace(':', '-')}-partial"
    remote.faults.extend([stall(5_000_000, stalled)] * 2)
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        body = {"model": name, "insecure": True}
        async with daemon.http.post("/api/pull", json=body) as response:
            async for line in response.content:
                # The state follows the bytes within a second.
                if json.loads(line).get("completed", 0) and _saved(partial) == 5_000_000:
                    break
            daemon.process.kill()
    assert not list((models / "manifests").rglob("x"))
    assert as_ollama_reads(partial)[0] == len(LARGE)
    remote.faults.clear()
    remote.seen.clear()
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        lines = await lines_of(daemon, "/api/pull", model=name, insecure=True)
        assert lines[-1] == {"status": "success"}
    blob = partial.with_name(partial.name.removesuffix("-partial"))
    assert blob.read_bytes() == LARGE
    assert not list(partial.parent.glob("*-partial*"))
    starts = {int(wanted[6:].split("-")[0]) for wanted in remote.fetches(LARGE)}
    assert min(starts) == 5_000_000


def _saved(partial: Path) -> int:
    return sum(part["Completed"] for part in as_ollama_reads(partial)[1])
