"""Contract 2.4 and 6: options that reload a model, and models that share an engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import ContractClient

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]


async def engines(contract_client: ContractClient) -> set[int]:
    return {engine.pid for engine in contract_client.daemon.engines()}


async def load(
    contract_client: ContractClient, options: dict[str, object], model: str = "plain"
) -> set[int]:
    """Load the model; return the process ids of all engines."""
    reply = await contract_client.ask("generate", {"model": model, "options": options})
    assert reply.status == 200, reply
    return await engines(contract_client)


async def unload(contract_client: ContractClient, model: str = "plain") -> None:
    reply = await contract_client.ask("generate", {"model": model, "keep_alive": 0})
    assert reply.json["done_reason"] == "unload"


async def context_of(contract_client: ContractClient, model: str = "plain:latest") -> Any:
    return (await contract_client.residents())[model]["context_length"]


@pytest.mark.contract("sched.reload", "options.num-ctx")
async def test_runner_options_load_anew_and_others_do_not(contract_client: ContractClient) -> None:
    await unload(contract_client)
    loaded = await load(contract_client, {"num_ctx": 128})
    assert await context_of(contract_client) == 128
    same: tuple[dict[str, object], ...] = (
        {"num_ctx": 128, "temperature": 0.1, "seed": 4, "stop": ["x"]},
        {"num_ctx": 128, "num_gpu": -1},
        {"num_ctx": 128, "draft_num_predict": 0},
        {"num_ctx": 64},  # a shorter one fits in what is there
    )
    for options in same:
        assert await load(contract_client, options) == loaded
    others: tuple[dict[str, object], ...] = (
        {"num_ctx": 129},
        {"num_ctx": 64, "num_batch": 32},
        {"num_thread": 1},  # its context is automatic, and as long as the model knows
    )
    for changed in others:
        found = await load(contract_client, changed)
        assert found != loaded
        loaded = found
    assert await context_of(contract_client) == 512
    assert await load(contract_client, {"num_ctx": 128, "num_thread": 1}) == loaded
    assert await load(contract_client, {"num_thread": 1}) == loaded


TEXT = "word " * 40
TURNS = [{"role": "user", "content": TEXT}]


@pytest.mark.contract("sched.reload")
@pytest.mark.parametrize(
    "path, body, count",
    [
        ("generate", {"prompt": TEXT}, "prompt_eval_count"),
        ("embed", {"model": "embedder", "input": TEXT}, "prompt_eval_count"),
        ("embed", {"model": "embedder", "input": TEXT, "truncate": False}, "prompt_eval_count"),
        ("/v1/chat/completions", {"messages": TURNS}, "prompt_tokens"),
        ("/v1/messages", {"messages": TURNS}, "input_tokens"),
    ],
)
async def test_a_short_context_is_that_of_the_request_that_asked_for_it(
    contract_client: ContractClient, path: str, body: dict[str, Any], count: str
) -> None:
    model: str = body.get("model", "plain")
    body = {"model": model, "stream": False, "max_tokens": 1} | body
    asked = {"model": model, "stream": False, "options": {"num_ctx": 16}}
    await unload(contract_client, model)
    if model == "embedder":
        cut = await contract_client.ask("embed", asked | {"input": TEXT})
    else:
        cut = await contract_client.ask("generate", asked | {"prompt": TEXT})
    assert 0 < cut.json["prompt_eval_count"] <= 16
    reply = await contract_client.ask(path, body)
    assert reply.status == 200, reply
    assert reply.json.get("usage", reply.json)[count] >= len(TEXT)  # a token a letter
    assert await context_of(contract_client, f"{model}:latest") == 512


@pytest.mark.contract("sched.reload")
async def test_a_context_that_is_too_short_doubles(contract_client: ContractClient) -> None:
    await unload(contract_client)
    contexts = []
    for num_ctx in (100, 90, 101, 150, 200, 201, 256, 100):
        await load(contract_client, {"num_ctx": num_ctx})
        contexts.append(await context_of(contract_client))
    assert contexts == [100, 100, 200, 200, 200, 400, 400, 400]


@pytest.mark.contract("options.num-ctx")
@pytest.mark.parametrize("asked, given", [(10**6, 512), (100, 100), (1, 4), (-7, 4)])
async def test_the_context_has_bounds(
    contract_client: ContractClient, asked: int, given: int
) -> None:
    await unload(contract_client)
    await load(contract_client, {"num_ctx": asked})
    assert await context_of(contract_client) == given


@pytest.mark.contract("sched.identity")
async def test_models_of_the_same_weights_share_an_engine(contract_client: ContractClient) -> None:
    await contract_client.ask("copy", {"source": "plain", "destination": "twin"})
    first = await load(contract_client, {"num_ctx": 128})
    assert await load(contract_client, {"num_ctx": 128}, "twin") == first
    await contract_client.ask("delete", {"model": "twin"})


@pytest.mark.contract("options.precedence")
async def test_the_request_wins_over_the_modelfile(contract_client: ContractClient) -> None:
    """The Modelfile of "dressed" sets num_ctx 256 and the stop text "few"."""
    await load(contract_client, {}, "dressed")
    assert await context_of(contract_client, "dressed:latest") == 256
    body = {"model": "dressed", "prompt": "x", "think": False, "stream": False}
    assert (await contract_client.ask("generate", body)).json["response"] == "Only a "
    body["options"] = {"stop": ["words"]}
    assert (await contract_client.ask("generate", body)).json["response"] == "Only a few "
    await unload(contract_client, "dressed")
    await load(contract_client, {"num_ctx": 128}, "dressed")
    assert await context_of(contract_client, "dressed:latest") == 128
