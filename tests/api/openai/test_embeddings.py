"""`/v1/embeddings`: fields, formats and errors."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from specd import core
from specd.errors import EmbeddingsUnsupported
from tests.api.fakes import FakeGeneration, client, model_ref

pytestmark = pytest.mark.contract("openai.embeddings")


async def post(body: object, generation: FakeGeneration | None = None) -> tuple[int, Any]:
    async with (
        client(generation) as http,
        http.post("/v1/embeddings", data=json.dumps(body)) as response,
    ):
        return response.status, await response.json()


async def failure(body: object, generation: FakeGeneration | None = None) -> tuple[int, str, str]:
    status, reply = await post(body, generation)
    error = reply["error"]
    assert (error["param"], error["code"]) == (None, None)
    return status, error["type"], error["message"]


async def test_a_reply_is_openais_list() -> None:
    async with (
        client() as http,
        http.post(
            "/v1/embeddings", json={"model": "embedder", "input": ["one two", "three"]}
        ) as response,
    ):
        assert response.status == 200
        assert await response.text() == (
            '{"object":"list","data":['
            '{"object":"embedding","embedding":[0.6,0.0,-0.8],"index":0},'
            '{"object":"embedding","embedding":[0.6,0.0,-0.8],"index":1}],'
            '"model":"embedder","usage":{"prompt_tokens":7,"total_tokens":7}}'
        )


@pytest.mark.parametrize("wanted", ["base64", "BASE64"])
async def test_base64_is_of_32_bit_floats_low_byte_first(wanted: str) -> None:
    _, reply = await post({"model": "embedder", "input": "a", "encoding_format": wanted})
    packed = base64.b64decode(reply["data"][0]["embedding"])
    assert packed == struct.pack("<3f", 0.6, 0.0, -0.8)


@pytest.mark.parametrize("wanted", ["float", "Float", "", None])
async def test_floats_are_the_default(wanted: str | None) -> None:
    _, reply = await post({"model": "embedder", "input": "a", "encoding_format": wanted})
    assert reply["data"][0]["embedding"] == [0.6, 0.0, -0.8]


async def test_dimensions_cut_and_normalise_again() -> None:
    _, reply = await post({"model": "embedder", "input": "a", "dimensions": 2})
    assert reply["data"][0]["embedding"] == [1.0, 0.0]


async def test_an_empty_text_is_embedded() -> None:
    generation = FakeGeneration()
    assert (await post({"model": "embedder", "input": ""}, generation))[0] == 200
    assert generation.embeds == [
        core.EmbedRequest(model=model_ref("embedder", "embedding"), texts=("",))
    ]


@pytest.mark.parametrize(
    "body, message",
    [
        ({"model": "embedder"}, "invalid input"),
        ({"model": "embedder", "input": None}, "invalid input"),
        ({"model": "embedder", "input": []}, "invalid input"),
        ({"model": "embedder", "input": [1, 2]}, "invalid input type"),
        ({"model": "embedder", "input": [[1, 2]]}, "invalid input type"),
        ({"model": "embedder", "input": 5}, "invalid input type"),
        (
            {"model": "embedder", "input": "a", "encoding_format": "int8"},
            "Invalid value for 'encoding_format' = int8. Supported values: ['float', 'base64'].",
        ),
        ({"model": "foo bar", "input": "a"}, "invalid model name"),
    ],
)
async def test_errors_of_bad_requests(body: dict[str, object], message: str) -> None:
    assert await failure(body) == (400, "invalid_request_error", message)


async def test_the_format_is_checked_before_the_input() -> None:
    _, _, message = await failure({"encoding_format": "x"})
    assert message.startswith("Invalid value for 'encoding_format'")


async def test_an_unknown_model_is_not_found() -> None:
    assert await failure({"model": "absent", "input": "a"}) == (
        404,
        "not_found_error",
        'model "absent" not found, try pulling it first',
    )
    status, kind, _ = await failure({"input": "a"})
    assert (status, kind) == (404, "not_found_error")


async def test_a_chat_model_gives_no_vectors() -> None:
    generation = FakeGeneration(vector=EmbeddingsUnsupported())
    status, kind, message = await failure({"model": "plain", "input": "a"}, generation)
    assert (status, kind) == (501, "api_error")
    assert "does not support embeddings" in message


async def test_a_vector_that_is_not_finite_is_an_error() -> None:
    generation = FakeGeneration(vector=(float("nan"),))
    status, _, message = await failure({"model": "embedder", "input": "a"}, generation)
    assert (status, message) == (400, "embedding contains NaN or Inf values")
