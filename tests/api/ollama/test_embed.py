"""`/api/embed` and `/api/embeddings`: fields, order of checks, texts of errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from specd import core
from specd.errors import (
    EmbeddingsUnsupported,
    EngineCrashed,
    InvalidOption,
    InvalidRequest,
    QueueFull,
)
from tests.api.fakes import MODELS, FakeGeneration, client, model_ref

TEXTS = ["one two", "three"]


async def post(
    path: str, body: object, generation: FakeGeneration | None = None, *models: core.ModelRef
) -> tuple[int, Any]:
    async with (
        client(generation, models=models or MODELS) as http,
        http.post(path, data=json.dumps(body)) as response,
    ):
        assert response.content_type == "application/json"
        return response.status, await response.json()


@pytest.mark.contract("embed.response", "embed.normalised")
async def test_embed_gives_normalised_vectors_counts_and_durations() -> None:
    async with (
        client() as http,
        http.post("/api/embed", json={"model": "embedder", "input": TEXTS}) as response,
    ):
        assert response.status == 200
        assert await response.text() == (
            '{"model":"embedder","embeddings":[[0.6,0.0,-0.8],[0.6,0.0,-0.8]],'
            '"total_duration":100,"load_duration":30,"prompt_eval_count":7}'
        )


async def test_every_field_of_the_request_is_passed_on() -> None:
    generation = FakeGeneration()
    body = {
        "model": "EMBEDDER",
        "input": TEXTS,
        "truncate": False,
        "keep_alive": "1m",
        "options": {"num_ctx": 64},
    }
    assert (await post("/api/embed", body, generation))[0] == 200
    assert generation.embeds == [
        core.EmbedRequest(
            model=model_ref("embedder", "embedding"),
            texts=tuple(TEXTS),
            options={"num_ctx": 64},
            keep_alive_s=60.0,
            truncate=False,
        )
    ]


@pytest.mark.contract("embed.input")
@pytest.mark.parametrize("sent", [5, True, {"a": 1}, ["a", 5], [None], [["a"]]])
async def test_input_of_another_type_is_refused_before_the_model_is_looked_for(
    sent: object,
) -> None:
    status, reply = await post("/api/embed", {"model": "absent", "input": sent})
    assert (status, reply) == (400, {"error": "invalid input type"})


@pytest.mark.contract("embed.input")
async def test_input_is_a_text_or_texts() -> None:
    generation = FakeGeneration()
    for sent, texts in (("a", ("a",)), (["a"], ("a",)), (["", "b"], ("", "b"))):
        status, reply = await post("/api/embed", {"model": "embedder", "input": sent}, generation)
        assert status == 200
        assert generation.embeds[-1].texts == texts
        assert len(reply["embeddings"]) == len(texts)


@pytest.mark.contract("embed.load")
@pytest.mark.parametrize("fields", [{}, {"input": ""}, {"input": None}, {"input": []}])
async def test_nothing_to_embed_loads_the_model(fields: dict[str, object]) -> None:
    generation = FakeGeneration()
    body = {"model": "embedder", "keep_alive": 60, "options": {"num_ctx": 9}} | fields
    assert await post("/api/embed", body, generation) == (
        200,
        {"model": "embedder", "embeddings": []},
    )
    assert generation.loads == [("embedder:latest", {"num_ctx": 9}, 60.0)]
    assert generation.embeds == []


@pytest.mark.contract("embed.load")
@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_nothing_to_embed_and_nothing_to_keep_unloads_the_model(path: str) -> None:
    generation = FakeGeneration()
    assert (await post(path, {"model": "embedder", "keep_alive": 0}, generation))[0] == 200
    assert (generation.unloads, generation.loads) == (["embedder:latest"], [])


@pytest.mark.contract("embed.dimensions")
@pytest.mark.parametrize(
    "dimensions, vector",
    [
        (1, [1.0]),
        (2, [1.0, 0.0]),
        (3, [0.6, 0.0, -0.8]),
        (4, [0.6, 0.0, -0.8]),
        (0, [0.6, 0.0, -0.8]),
        (-1, [0.6, 0.0, -0.8]),
    ],
)
async def test_dimensions_cut_and_normalise_again(dimensions: int, vector: list[float]) -> None:
    body = {"model": "embedder", "input": "a", "dimensions": dimensions}
    _, reply = await post("/api/embed", body)
    assert reply["embeddings"] == [vector]


async def test_a_vector_of_nothing_stays_nothing() -> None:
    _, reply = await post(
        "/api/embed", {"model": "embedder", "input": "a"}, FakeGeneration(vector=(0.0, 0.0))
    )
    assert reply["embeddings"] == [[0.0, 0.0]]


@pytest.mark.contract("embed.nan")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_a_vector_that_is_not_finite_is_an_error(path: str, bad: float) -> None:
    generation = FakeGeneration(vector=(1.0, bad))
    body = {"model": "embedder", "input": "a", "prompt": "a"}
    assert await post(path, body, generation) == (
        400,
        {"error": "embedding contains NaN or Inf values"},
    )


@pytest.mark.contract("embed.missing-model")
async def test_without_a_model_the_two_routes_differ() -> None:
    assert await post("/api/embed", {"input": "a"}) == (404, {"error": "model '' not found"})
    assert await post("/api/embeddings", {"prompt": "a"}) == (400, {"error": "model is required"})


@pytest.mark.contract("embed.unknown-model")
@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_an_unknown_model_is_to_be_pulled_first(path: str) -> None:
    assert await post(path, {"model": "Absent", "input": "a", "prompt": "a"}) == (
        404,
        {"error": 'model "Absent" not found, try pulling it first'},
    )
    status, reply = await post(path, {"model": "foo bar", "input": "a", "prompt": "a"})
    assert (status, reply) == (400, {"error": "invalid model name"})


@pytest.mark.contract("embed.not-embedder")
async def test_a_chat_model_is_501_and_500_on_the_old_route() -> None:
    text = "This server does not support embeddings. Start it with `--embeddings`"
    body = {"model": "plain", "input": "a", "prompt": "a"}
    for path, status in (("/api/embed", 501), ("/api/embeddings", 500)):
        generation = FakeGeneration(vector=EmbeddingsUnsupported())
        assert await post(path, body, generation) == (status, {"error": text})


@pytest.mark.parametrize(
    "error, status",
    [
        (InvalidRequest("the input length exceeds the context length"), 400),
        (InvalidOption('option "num_ctx" must be of type integer'), 500),
        (QueueFull(), 503),
        (EngineCrashed("model runner has unexpectedly stopped"), 500),
    ],
)
async def test_each_error_has_its_status(error: Exception, status: int) -> None:
    generation = FakeGeneration(vector=error)
    body = {"model": "embedder", "input": "a"}
    assert await post("/api/embed", body, generation) == (status, {"error": str(error)})


async def test_bodies_are_read_by_gos_rules() -> None:
    async with client() as http:
        async with http.post("/api/embed", data="") as response:
            assert (response.status, await response.json()) == (
                400,
                {"error": "missing request body"},
            )
        async with http.post("/api/embed", data='{"truncate": 1}') as response:
            assert (await response.json())["error"] == (
                "json: cannot unmarshal number into Go struct field EmbedRequest.truncate"
                " of type bool"
            )
        async with http.get("/api/embed") as response:
            assert response.status == 405


@pytest.mark.contract("embed.old")
async def test_the_old_route_gives_one_vector() -> None:
    generation = FakeGeneration()
    body = {"model": "embedder", "prompt": "one two", "options": {}, "keep_alive": -1}
    assert await post("/api/embeddings", body, generation) == (
        200,
        {"embedding": [0.6, 0.0, -0.8]},
    )
    [asked] = generation.embeds
    assert (asked.texts, asked.truncate, asked.keep_alive_s) == (("one two",), True, math.inf)


@pytest.mark.contract("embed.old")
async def test_an_empty_prompt_on_the_old_route_loads() -> None:
    generation = FakeGeneration()
    assert await post("/api/embeddings", {"model": "embedder"}, generation) == (
        200,
        {"embedding": []},
    )
    assert generation.loads == [("embedder:latest", {}, None)]


@pytest.mark.parametrize(
    "architecture, eos_token, is_raw",
    [
        ("bert", "", False),
        ("bert", "</s>", True),
        ("nomic-bert", "", True),
        ("nomic-bert-moe", "</s>", True),
        ("qwen3", "</s>", False),
    ],
)
async def test_the_older_route_normalises_the_same_models_as_before(
    architecture: str, eos_token: str, is_raw: bool
) -> None:
    model = replace(model_ref("m", "embedding"), architecture=architecture, eos_token=eos_token)
    _, reply = await post("/api/embeddings", {"model": "m", "prompt": "a"}, None, model)
    assert reply["embedding"] == ([3.0, 0.0, -4.0] if is_raw else [0.6, 0.0, -0.8])
    _, reply = await post("/api/embed", {"model": "m", "input": "a"}, None, model)
    assert reply["embeddings"] == [[0.6, 0.0, -0.8]]
