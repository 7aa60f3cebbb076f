"""Contract 2.7 and 4: the models in tags, ps and show, and their names."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from typing import Any

import pytest

from specd.store.gguf import read_header
from tests.contract.conftest import GO, SPEAKING, ContractClient

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

LOCAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


async def tags(contract_client: ContractClient) -> dict[str, Any]:
    models = (await contract_client.get("/api/tags")).json["models"]
    return {model["name"]: model for model in models}


async def show(contract_client: ContractClient, model: str, **fields: object) -> Any:
    reply = await contract_client.ask("show", {"model": model} | fields)
    assert reply.status == 200, reply
    return reply.json


# --------------------------------------------------------------------------- tags


@pytest.mark.contract("tags.fields", "tags.details")
async def test_an_entry_of_tags(contract_client: ContractClient) -> None:
    entry = (await tags(contract_client))["plain:latest"]
    assert list(entry) == [
        *("name", "model", "modified_at", "size", "digest", "details", "capabilities")
    ]
    assert entry["model"] == entry["name"]
    assert entry["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "37.12K",
        "quantization_level": "F32",
        "context_length": 512,
        "embedding_length": 32,
    }
    assert (await tags(contract_client))["dressed:latest"]["details"][
        "parent_model"
    ] == "speaker:latest"


@pytest.mark.contract("tags.digest", "tags.size", "answer.times")
async def test_digest_size_and_time_are_the_manifests(contract_client: ContractClient) -> None:
    for name, entry in (await tags(contract_client)).items():
        path = contract_client.store.manifest_path(name)
        assert entry["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
        manifest = json.loads(path.read_bytes())
        parts = [manifest["config"], *manifest["layers"]]
        assert entry["size"] == sum(part["size"] for part in parts)
        assert LOCAL.fullmatch(entry["modified_at"])
        modified = dt.datetime.fromisoformat(entry["modified_at"]).timestamp()
        assert modified == pytest.approx(path.stat().st_mtime, abs=1e-3)


@pytest.mark.contract("tags.order", "store.damage", "tags.remote")
async def test_all_models_are_listed_newest_first(contract_client: ContractClient) -> None:
    found = await tags(contract_client)
    times = [contract_client.store.manifest_path(name).stat().st_mtime for name in found]
    assert times == sorted(times, reverse=True)
    assert {"cut:latest", "strange:latest", "safetensors:latest", "Speaker:latest"} <= set(found)
    remote = found["remote:latest"]
    assert list(remote)[:4] == ["name", "model", "remote_model", "remote_host"]
    assert (remote["remote_model"], remote["remote_host"]) == ("big", "https://ollama.com:443")


@pytest.mark.contract("show.capabilities", "tags.capabilities")
@pytest.mark.parametrize(
    "model, capabilities",
    [
        ("plain", {"completion"}),
        ("thinker", {"completion", "thinking"}),
        ("able", {"completion", "tools", "insert", "thinking"}),
        ("Speaker", {"completion", "tools", "thinking"}),
        ("embedder", {"embedding"}),
        ("seeing", {"completion", "vision"}),
        ("painter", {"completion", "image"}),
    ],
)
async def test_capabilities(
    contract_client: ContractClient, model: str, capabilities: set[str]
) -> None:
    shown = (await show(contract_client, model))["capabilities"]
    assert set(shown) == capabilities
    assert len(shown) == len(capabilities)
    assert (await tags(contract_client))[f"{model}:latest"]["capabilities"] == shown


# --------------------------------------------------------------------------- ps


@pytest.mark.contract("ps.fields", "ps.order", "ps.vram", "answer.times", "answer.model-echo")
async def test_ps_shows_loaded_models(contract_client: ContractClient) -> None:
    listed = await tags(contract_client)
    await contract_client.ask(
        "generate", {"model": "PLAIN", "keep_alive": "1h", "options": {"num_ctx": 64}}
    )
    await contract_client.ask("generate", {"model": "bare", "keep_alive": -1})
    found = await contract_client.residents()
    assert list(found).index("bare:latest") < list(found).index("plain:latest")
    entry = found["plain:latest"]
    assert list(entry) == [
        *("name", "model", "size", "digest", "details", "expires_at", "size_vram"),
        *("context_length", "specd"),
    ]
    assert entry["model"] == "plain:latest"
    assert entry["digest"] == listed["plain:latest"]["digest"]
    assert entry["details"] == listed["plain:latest"]["details"]
    assert entry["size"] > 0
    assert entry["size_vram"] in {0, entry["size"]}  # all on a GPU, or none of it
    assert entry["context_length"] == 64
    assert LOCAL.fullmatch(entry["expires_at"])
    assert dt.datetime.fromisoformat(found["bare:latest"]["expires_at"]).year > 2300


# --------------------------------------------------------------------------- show


@pytest.mark.contract("show.name", "show.fields", "show.parameters", "show.template")
@pytest.mark.parametrize("key", ["model", "name"])
async def test_show_says_all_of_a_model(contract_client: ContractClient, key: str) -> None:
    # The last three change nothing.
    ignored = {"template": "t", "options": {"seed": 1}, "verbose": False}
    shown = (await contract_client.ask("show", {key: "dressed"} | ignored)).json
    assert list(shown) == [
        *("license", "modelfile", "parameters", "template", "system", "details", "messages"),
        *("model_info", "tensors", "capabilities", "modified_at", "specd"),
    ]
    assert shown["license"] == "MIT\nBSD"
    assert shown["template"] == SPEAKING
    assert shown["system"] == "Be kind."
    assert shown["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
    ]
    assert sorted(shown["parameters"].splitlines()) == [
        f"{'num_ctx':<30} 256",
        f'{"stop":<30} "few"',
        f"{'temperature':<30} 0",
    ]
    assert shown["details"]["parent_model"] == "speaker:latest"


@pytest.mark.contract("show.modelfile")
async def test_the_modelfile_makes_the_model_again(contract_client: ContractClient) -> None:
    text = (await show(contract_client, "dressed"))["modelfile"]
    blob = contract_client.store.weights_path("dressed")
    assert text.startswith(
        '# Modelfile generated by "ollama show"\n'
        "# To build a new Modelfile based on this, replace FROM with:\n"
        f"# FROM dressed:latest\n\nFROM {blob}\n"
    )
    for line in ("SYSTEM Be kind.", "PARAMETER stop few", "LICENSE MIT", "MESSAGE assistant Ho"):
        assert f"\n{line}\n" in text


@pytest.mark.contract("show.model-info", "show.tensors")
async def test_the_ggufs_own_words(contract_client: ContractClient) -> None:
    shown = await show(contract_client, "plain")
    header = read_header(contract_client.store.weights_path("plain"))
    info = shown["model_info"]
    hidden = {"general.name", "tokenizer.chat_template"}
    assert set(info) == set(header.values) - hidden | {"general.parameter_count"}
    assert info["general.architecture"] == "llama"
    assert info["llama.context_length"] == 512
    assert info["general.parameter_count"] == header.parameter_count
    assert [list(tensor) for tensor in shown["tensors"]] == [
        ["name", "type", "shape"] for _ in header.tensors
    ]
    first = next(tensor for tensor in shown["tensors"] if tensor["name"] == "token_embd.weight")
    assert first["type"] == "F32"
    assert min(first["shape"]) == 32


@pytest.mark.contract("show.template", "templates.go-served")
async def test_the_template_is_the_one_that_is_used(contract_client: ContractClient) -> None:
    assert (await show(contract_client, "gopher"))["template"] == GO
    assert (await show(contract_client, "speaker"))["template"] == SPEAKING
    assert (await show(contract_client, "bare"))["template"] == "{{ .Prompt }}"


@pytest.mark.contract("show.projector")
async def test_show_describes_a_projector(contract_client: ContractClient) -> None:
    info = (await show(contract_client, "seeing"))["projector_info"]
    assert info["general.architecture"] == "clip"
    assert "projector_info" not in await show(contract_client, "plain")


@pytest.mark.contract("show.overrides", "show.copilot")
async def test_show_depends_on_system_and_user_agent(contract_client: ContractClient) -> None:
    assert (await show(contract_client, "dressed", system="Be brief."))["system"] == "Be brief."
    headers = {"User-Agent": "GitHubCopilotChat/0.1"}
    reply = await contract_client.ask("show", {"model": "dressed"}, **headers)
    assert reply.json["model_info"]["general.basename"] == "dressed"


# --------------------------------------------------------------------------- names


@pytest.mark.contract("names.defaults", "names.case", "names.local")
@pytest.mark.parametrize(
    "name",
    [
        "Speaker",
        "speaker",
        "SPEAKER:LATEST",
        "library/speaker",
        "registry.ollama.ai/library/Speaker:latest",
        "https://registry.ollama.ai/library/speaker",
        "speaker:latest:local",
        "speaker:LOCAL",
    ],
)
async def test_one_model_has_many_names(contract_client: ContractClient, name: str) -> None:
    assert (await show(contract_client, name))["template"] == SPEAKING
    reply = await contract_client.ask("generate", {"model": name, "stream": False})
    assert (reply.status, reply.json["model"]) == (200, name)
    assert "Speaker:latest" in await contract_client.residents()


@pytest.mark.contract("names.hf", "copy.empty", "delete.empty", "names.defaults")
@pytest.mark.parametrize(
    "name, listed",
    [
        ("hf.co/someone/a-model:Q8_0", "hf.co/someone/a-model:Q8_0"),
        ("someone/model", "someone/model:latest"),
        ("registry.ollama.ai/library/Another:V1", "Another:V1"),
    ],
)
async def test_a_copy_is_listed_by_its_short_name(
    contract_client: ContractClient, name: str, listed: str
) -> None:
    blobs = sorted((contract_client.store.root / "blobs").iterdir())
    reply = await contract_client.ask("copy", {"source": "plain", "destination": name})
    assert (reply.status, reply.body) == (200, b"")
    assert listed in await tags(contract_client)
    assert contract_client.store.manifest_path(listed).is_file()
    reply = await contract_client.ask("delete", {"name": listed.upper()})
    assert (reply.status, reply.body) == (200, b"")
    assert listed not in await tags(contract_client)
    assert sorted((contract_client.store.root / "blobs").iterdir()) == blobs
