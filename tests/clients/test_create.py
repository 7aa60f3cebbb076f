"""Models created through the running daemon and quantized by real llama.cpp."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from specd.store.gguf import read_header
from tests.daemon_process import Daemon, running
from tests.gguf_files import Shape, write_llama

pytestmark = pytest.mark.native

# K-quants come in blocks of 256 weights.
SHAPE = Shape(n_embd=256, n_ff=256)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """Yield a daemon over a store with one old blob that no model uses."""
    blobs = tmp_path / "models" / "blobs"
    for folder in (blobs, blobs.with_name("manifests")):
        folder.mkdir(parents=True)
    (blobs / f"sha256-{'0' * 64}").touch()
    os.utime(blobs / f"sha256-{'0' * 64}", (0, 0))
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(daemon.url) as client:
        yield client


async def create(daemon: Daemon, **fields: object) -> list[dict[str, Any]]:
    async with daemon.http.post("/api/create", json=fields) as response:
        lines = [json.loads(line) async for line in response.content]
    assert lines[-1] == {"status": "success"}, lines
    return lines


@pytest.mark.contract(
    "create.from-files", "create.from-model", "store.prune", "draft.used", "create.draft"
)
async def test_an_uploaded_pair_answers_speculatively(
    tmp_path: Path, daemon: Daemon, client: ollama.AsyncClient
) -> None:
    assert not list((tmp_path / "models" / "blobs").iterdir())
    target = write_llama(tmp_path / "target.gguf")
    draft = write_llama(tmp_path / "draft.gguf", noise=0.01)
    digests = [await client.create_blob(path) for path in (target, draft)]
    await create(
        daemon,
        model="Pair",
        files={"target.gguf": digests[0]},
        draft_files={"draft.gguf": digests[1]},
        parameters={"num_predict": 32, "seed": 1, "temperature": 0},
    )
    first = (await daemon.answer("Hello", model="pair", options={"draft_num_predict": 4}))[-1]
    assert first["eval_count"] == 32
    assert first["speculation"]["pair_source"] == "manifest"
    # Whether so small a drafter pays depends on the machine; that it works does not.
    assert first["speculation"]["drafter"]
    assert first["speculation"]["state"] in {"active", "parked"}
    assert first["speculation"].get("reason") != "drafter_failed"

    # A model created from it keeps the drafter and has its own parameters.
    await client.create("child", from_="pair", system="Be brief.", parameters={"num_predict": 4})
    shown = await client.show("child")
    assert shown.details is not None
    assert shown.details.parent_model == "Pair:latest"
    answer = (await daemon.answer("Hello", model="child"))[-1]
    assert answer["eval_count"] == 4
    assert answer["speculation"]["drafter"]

    await client.copy("child", "other:v1")
    for name in ("pair", "child"):
        await client.delete(name)
    assert [model.model for model in (await client.list()).models] == ["other:v1"]
    assert (await daemon.answer("Hello", model="other:v1"))[-1]["eval_count"] == 4
    await client.delete("other:v1")
    assert not list((tmp_path / "models" / "blobs").iterdir())


@pytest.mark.contract("create.quantize", "create.progress", "create.quantize-types")
async def test_weights_are_quantized(
    tmp_path: Path, daemon: Daemon, client: ollama.AsyncClient
) -> None:
    digest = await client.create_blob(write_llama(tmp_path / "target.gguf", shape=SHAPE))
    lines = await create(daemon, model="f16", files={"t.gguf": digest}, quantize="f16")
    assert [line["status"] for line in lines[:2]] == [
        "parsing GGUF",
        "quantizing F32 model to F16",
    ]
    assert lines[1]["digest"] == "0000000000000000000"
    sizes = []
    for file_type, tensor_type in (("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_K")):
        lines = await create(daemon, **{"model": file_type, "from": "f16", "quantize": file_type})
        steps = [line for line in lines if line["status"].startswith("quantizing")]
        assert steps[0]["status"] == f"quantizing F16 model to {file_type}"
        assert steps[-1]["completed"] == steps[-1]["total"]
        shown = await client.show(file_type)
        assert shown.details is not None
        assert shown.details.quantization_level == file_type
        model = next(m for m in (await client.list()).models if m.model == f"{file_type}:latest")
        weights = tmp_path / "models" / "blobs" / lines[-3]["status"][-71:].replace(":", "-")
        assert tensor_type in {tensor.type for tensor in read_header(weights).tensors}
        assert model.size is not None
        sizes.append(model.size)
        answer = await daemon.answer("Hello", model=file_type, options={"num_predict": 4})
        assert answer[-1]["eval_count"] == 4
    assert sizes == sorted(sizes, reverse=True)

    # Quantized weights are not quantized again.
    again = {"model": "again", "from": "Q4_K_M", "quantize": "Q8_0"}
    async with daemon.http.post("/api/create", json=again) as response:
        assert response.status == 400
        text = "quantization is only supported for F16, BF16 and F32 models"
        assert await response.json() == {"error": text}
