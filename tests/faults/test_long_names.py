"""Model names that Ollama's grammar allows and that no file, or no host, can have."""

from __future__ import annotations

import json

import pytest

from tests.faults.conftest import Wire, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Longer than a file's name may be; longer than a part of a host's name may be.
LONG, LONG_PART = "h" * 300 + "/ns/model", "h" * 100 + ".example/ns/model"
TOO_LONG = "invalid model name: a part of it has 300 characters"
NO_HOST = "is not a valid host name"


@pytest.mark.parametrize(
    "path, body, status, said",
    [
        ("/api/delete", {"model": LONG}, 404, "not found"),
        ("/api/copy", {"source": LONG, "destination": "y"}, 404, "not found"),
        ("/api/copy", {"source": "m", "destination": LONG}, 400, TOO_LONG),
        ("/api/create", {"model": LONG, "from": "m"}, 400, TOO_LONG),
        ("/api/create", {"model": "x", "from": LONG}, 400, TOO_LONG),
        ("/api/pull", {"model": LONG}, 400, TOO_LONG),
        ("/api/pull", {"model": LONG_PART}, 500, NO_HOST),
        ("/api/create", {"model": "x", "from": LONG_PART}, 500, NO_HOST),
        ("/api/show", {"model": LONG}, 404, "not found"),
        ("/api/generate", {"model": LONG, "prompt": "a"}, 404, "not found"),
        ("/api/embed", {"model": LONG, "input": "a"}, 404, "not found"),
        ("/v1/completions", {"model": LONG, "prompt": "a"}, 404, "not found"),
    ],
)
async def test_a_name_that_is_too_long_gets_a_clear_error(
    wire: Wire, path: str, body: dict[str, object], status: int, said: str
) -> None:
    raw = post(path, json.dumps(body | {"stream": False}).encode())
    reply = await wire.send(raw.replace(b"POST", b"DELETE", 1) if path == "/api/delete" else raw)
    assert reply is not None
    assert (reply.status, said in reply.body.decode()) == (status, True), reply.body
    assert b"Traceback" not in wire.log.read_bytes()
