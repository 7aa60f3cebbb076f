"""Contract 11: the requests of each `ollama` command, and the fields that it reads."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.conftest import WORDS, ContractClient
from tests.gguf_files import write_llama
from tests.registry.fake_registry import FakeRegistry

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

AGENT = "ollama/0.33.0 (amd64 linux) Go/go1.24"


@pytest_asyncio.fixture(loop_scope="module")
async def command(contract_client: ContractClient) -> ContractClient:
    """Return the client after `HEAD /`, the first request of every command."""
    async with contract_client.daemon.http.head("/", headers={"User-Agent": AGENT}) as reply:
        assert reply.status < 400
    return contract_client


async def shown(command: ContractClient, name: str) -> Any:
    reply = await command.ask("show", {"name": name})
    assert reply.status == 200
    return reply.json


@pytest.mark.contract("command.run")
async def test_run_with_a_prompt(command: ContractClient) -> None:
    told = await shown(command, "speaker")
    assert {"completion", "thinking"} <= set(told["capabilities"])
    assert not any(".vision." in key for key in told["model_info"])
    assert "projector_info" not in told
    assert "remote_host" not in told
    assert told["details"]["parent_model"] == ""
    asked = {"model": "speaker", "prompt": "x", "options": {}, "think": False}
    lines = (await command.ask("generate", asked)).lines
    assert "".join(line["response"] for line in lines) == WORDS
    assert lines[-1]["done"]


@pytest.mark.contract("command.run")
async def test_run_interactively(command: ContractClient) -> None:
    told = await shown(command, "dressed")
    assert (told["system"], len(told["messages"])) == ("Be kind.", 2)
    # The command loads the model before it shows its prompt.
    loaded = await command.ask("generate", {"model": "speaker", "keep_alive": None})
    assert loaded.json["done_reason"] == "load"
    messages = [{"role": "user", "content": "x"}]
    lines = (await command.ask("chat", {"model": "speaker", "messages": messages})).lines
    assert lines[-1]["done"]


@pytest.mark.contract("command.run", "command.pull")
async def test_run_of_a_model_that_is_not_here(command: ContractClient) -> None:
    """After a 404 the command pulls the model, and if that fails it tries the cloud."""
    assert (await command.ask("show", {"name": "absent"})).status == 404
    async with FakeRegistry().serve() as registry:
        name = registry.name("library/absent/latest")
        reply = await command.ask("pull", {"name": name, "insecure": True})
    assert reply.lines[-1] == {"error": "pull model manifest: file does not exist"}
    cloud = await command.ask("show", {"name": "absent:cloud"})
    assert cloud.status == 403


@pytest.mark.contract("command.run")
async def test_run_of_an_embedder(command: ContractClient) -> None:
    assert "embedding" in (await shown(command, "embedder"))["capabilities"]
    reply = await command.ask("embed", {"model": "embedder", "input": "x", "truncate": None})
    assert len(reply.json["embeddings"][0]) == 32


@pytest.mark.contract("command.list")
async def test_list(command: ContractClient) -> None:
    models = (await command.get("/api/tags")).json["models"]
    for model in models:
        assert len(model["digest"]) == 64
        assert model["size"] > 0
        assert dt.datetime.fromisoformat(model["modified_at"]).tzinfo is not None
    assert {model["name"]: model.get("remote_model") for model in models}["remote:latest"] == "big"


@pytest.mark.contract("command.ps", "command.stop")
async def test_ps_and_stop(command: ContractClient) -> None:
    await command.ask("generate", {"model": "speaker", "keep_alive": -1})
    entry = (await command.residents())["Speaker:latest"]
    assert len(entry["digest"]) >= 12
    assert {type(entry[key]) for key in ("size", "size_vram", "context_length")} == {int}
    expires = dt.datetime.fromisoformat(entry["expires_at"])
    # More than twenty years are shown as "Forever".
    assert expires - dt.datetime.now(dt.UTC) > dt.timedelta(days=365 * 20)
    await shown(command, "speaker")
    reply = await command.ask("generate", {"model": "speaker", "keep_alive": "0s"})
    assert reply.status == 200
    assert "Speaker:latest" not in await command.residents()
    # The command searches the error for these words.
    assert "not found" in (await command.ask("show", {"name": "absent"})).json["error"]


@pytest.mark.contract("command.show")
async def test_show(command: ContractClient) -> None:
    told = await shown(command, "dressed")
    for key in ("modelfile", "parameters", "template", "system", "license"):
        assert isinstance(told[key], str)
    numbers = [
        value for key, value in told["model_info"].items() if key.endswith(("_length", "_count"))
    ]
    assert numbers
    assert {type(number) for number in numbers} == {int}


@pytest.mark.contract("command.create", "command.cp", "command.rm", "show.name")
async def test_create_cp_and_rm(command: ContractClient, tmp_path: Path) -> None:
    data = write_llama(tmp_path / "new.gguf", seed=77).read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    async with command.daemon.http.head(f"/api/blobs/{digest}") as reply:
        assert reply.status == 404
    assert (await command.ask(f"blobs/{digest}", data)).status == 201
    made = {"name": "new", "files": {"new.gguf": digest}, "parameters": {"num_ctx": 64}}
    lines = (await command.ask("create", made)).lines
    assert lines[-1] == {"status": "success"}
    for line in lines:
        # Cut out of the digest where there is no status to show.
        assert line["status"] or len(line["digest"]) >= 19
    assert (await command.ask("copy", {"source": "new", "destination": "newer"})).status == 200
    for name in ("new", "newer"):
        await shown(command, name)
        left = await command.ask("generate", {"model": name, "keep_alive": "0s"})
        assert left.status == 200
        deleted = await command.ask("delete", {"name": name})
        assert (deleted.status, deleted.body) == (200, b"")
    again = await command.ask("delete", {"name": "new"})
    assert "not found" in again.json["error"]


@pytest.mark.contract("command.pull", "command.push", "show.name")
async def test_push_and_pull(command: ContractClient) -> None:
    await command.ask("me", b"")
    async with FakeRegistry().serve() as registry:
        name = registry.name("someone/plain/v1")
        host = name.removeprefix("http://")
        await command.ask("copy", {"source": "plain", "destination": host})
        lines = (await command.ask("push", {"name": name, "insecure": True})).lines
        assert lines[-1] == {"status": "success"}
        await command.ask("delete", {"name": host})
        pulled = (await command.ask("pull", {"name": name, "insecure": True})).lines
        assert pulled[0]["status"] == "pulling manifest"
        assert pulled[-1] == {"status": "success"}
        for line in pulled:
            if "digest" in line:
                assert {"status", "digest", "total"} <= set(line)
        assert host in await names(command)
        await command.ask("delete", {"name": host})


async def names(command: ContractClient) -> set[str]:
    return {model["name"] for model in (await command.get("/api/tags")).json["models"]}


@pytest.mark.contract("command.start")
async def test_requests_before_the_menu(command: ContractClient) -> None:
    assert (await command.get("/api/status")).json["cloud"]["disabled"] is True
    assert (await command.get("/api/version")).json["version"]
    assert (await command.ask("me", b"")).status == 503
    path = "/api/experimental/model-recommendations"
    assert (await command.get(path)).json == {"recommendations": []}
    for model in (await command.get("/api/tags")).json["models"]:
        if model["name"] in {"plain:latest", "Speaker:latest"}:
            assert model["capabilities"]
            assert model["details"]["context_length"] > 0
