"""Contract 2.5: which models draft, and those that Ollama serves and this engine does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.conftest import ContractClient
from tests.daemon_process import running
from tests.gguf_architectures import write_qwen35
from tests.gguf_files import OllamaStore, write_llama
from tests.gguf_projectors import write_llava

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

OPTIONS = {"num_predict": 32, "temperature": 0, "draft_num_predict": 4}
ASKED = {"prompt": "x", "stream": False, "options": OPTIONS}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def contract_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ContractClient]:
    folder = tmp_path_factory.mktemp("drafters")
    store = OllamaStore(folder / "models")
    target = write_llama(folder / "target.gguf")
    store.add("ordinary", weights=target, draft=write_llama(folder / "small.gguf", noise=0.01))
    store.add("heads", weights=write_qwen35(folder / "heads.gguf", heads=True))
    dflash = write_llama(folder / "dflash.gguf", architecture="dflash")
    # Different weights, because models with equal weights share an engine and its drafter.
    store.add("flash", weights=write_llama(folder / "flash.gguf", seed=7), draft=dflash)
    mllama = write_llama(folder / "mllama.gguf", architecture="mllama")
    store.add("mllama", weights=mllama, projector=write_llava(folder / "p.gguf"))
    async with running(folder) as daemon:
        yield ContractClient(daemon, store)


@pytest.mark.contract("draft.used")
async def test_an_ordinary_small_model_drafts(contract_client: ContractClient) -> None:
    answer = (await contract_client.ask("generate", {"model": "ordinary"} | ASKED)).json
    assert answer["speculation"]["pair_source"] == "manifest"
    # Whether a drafter of the same size pays depends on the machine; that it works does not.
    assert answer["speculation"]["state"] in {"active", "parked"}
    assert answer["speculation"].get("reason") != "drafter_failed"


@pytest.mark.contract("draft.heads")
@pytest.mark.parametrize("model", ["heads", "flash"])
async def test_other_kinds_are_done_without(contract_client: ContractClient, model: str) -> None:
    reply = await contract_client.ask("generate", {"model": model} | ASKED)
    assert reply.status == 200
    assert reply.json["eval_count"] == 32
    assert reply.json["speculation"]["drafter"] in {None, "prompt lookup"}


@pytest.mark.contract("images.mllama")
async def test_mllama_is_refused_with_its_name(contract_client: ContractClient) -> None:
    asked = {"model": "mllama", "prompt": "x", "images": ["AAAA", "AAAA"]}
    reply = await contract_client.ask("generate", asked)
    assert reply.status == 500
    assert "unknown model architecture: 'mllama'" in reply.json["error"]
