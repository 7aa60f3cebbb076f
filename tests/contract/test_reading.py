"""Contract 1.2: how a body is read, on every route that reads JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conftest import ContractClient, Reply

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

BOTH = 'use either :local or :cloud, not both: "x:local:cloud"'
#: Route → the fields that it requires besides the model's name.
ROUTES: dict[str, dict[str, Any]] = {
    "generate": {"prompt": "x"},
    "chat": {"messages": [{"role": "user", "content": "x"}]},
    "embed": {"input": "x"},
    "embeddings": {"prompt": "x"},
    "show": {},
    "pull": {},
    "push": {},
    "create": {"from": "plain"},
    "copy": {"destination": "y"},
    "delete": {},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
#: The status and error of each for a body of defaults only.
NOTHING = {
    "generate": (404, "model '' not found"),
    "chat": (400, "model is required"),
    "embed": (404, "model '' not found"),
    "embeddings": (400, "model is required"),
    "show": (400, "model is required"),
    "pull": (400, "invalid model name"),
    "push": (400, "model is required"),
    "create": (400, "invalid model name"),
    "copy": (400, 'source "" is invalid'),
    "delete": (400, "model is required"),
    "/v1/chat/completions": (400, "[] is too short - 'messages'"),
    "/v1/messages": (400, "model is required"),
}


def body_of(path: str) -> dict[str, Any]:
    """Return a body whose model's name has an error of its own, which shows that it was read."""
    return {"source" if path == "copy" else "model": "x:local:cloud"} | ROUTES[path]


def sentence(reply: Reply) -> str:
    error = reply.json["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.contract("body.content-type")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_the_content_type_is_ignored(
    contract_client: ContractClient, path: str, kind: str
) -> None:
    reply = await contract_client.ask(path, body_of(path), **{"Content-Type": kind})
    assert (reply.status, sentence(reply)) == (400, BOTH)


@pytest.mark.contract("body.first-value")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("rest", [b" and more", b"{}", b"}", b'{"model":"absent"}'])
async def test_only_the_first_value_counts(
    contract_client: ContractClient, path: str, rest: bytes
) -> None:
    reply = await contract_client.ask(path, json.dumps(body_of(path)).encode() + rest)
    assert (reply.status, sentence(reply)) == (400, BOTH)


@pytest.mark.contract("body.unknown-fields")
@pytest.mark.parametrize("path", ROUTES)
async def test_unknown_fields_are_ignored(contract_client: ContractClient, path: str) -> None:
    strangers = {"nobody_knows": {"a": [1]}, "username": "u", "": None}
    reply = await contract_client.ask(path, strangers | body_of(path))
    assert (reply.status, sentence(reply)) == (400, BOTH)


@pytest.mark.contract("body.case")
@pytest.mark.parametrize("path", ROUTES)
async def test_keys_match_ignoring_case(contract_client: ContractClient, path: str) -> None:
    reply = await contract_client.ask(
        path, {key.upper(): value for key, value in body_of(path).items()}
    )
    assert (reply.status, sentence(reply)) == (400, BOTH)


@pytest.mark.contract("body.null")
@pytest.mark.parametrize("path", NOTHING)
@pytest.mark.parametrize("body", [b"null", b"{}", b'{"model":null,"name":null,"source":null}'])
async def test_null_is_the_same_as_absent(
    contract_client: ContractClient, path: str, body: bytes
) -> None:
    reply = await contract_client.ask(path, body)
    assert (reply.status, sentence(reply)) == NOTHING[path]


@pytest.mark.contract("body.null")
@pytest.mark.parametrize("path", ["generate", "chat", "embed", "embeddings"])
async def test_fields_that_are_null_are_unset(contract_client: ContractClient, path: str) -> None:
    model = "embedder" if path.startswith("embed") else "plain"
    nulls = dict.fromkeys(
        (
            *("options", "stream", "think", "format", "keep_alive", "images", "tools", "raw"),
            *("system", "template", "context", "suffix", "truncate", "shift", "dimensions"),
            *("logprobs", "top_logprobs", "_debug_render_only"),
        )
    )
    reply = await contract_client.ask(path, nulls | {"model": model} | ROUTES[path])
    assert reply.status == 200


@pytest.mark.contract("openai.errors")
@pytest.mark.parametrize("path", [path for path in ROUTES if path.startswith("/v1/")])
async def test_no_body_is_eof_on_the_newer_routes(
    contract_client: ContractClient, path: str
) -> None:
    reply = await contract_client.ask(path, b"")
    assert (reply.status, sentence(reply)) == (400, "EOF")
