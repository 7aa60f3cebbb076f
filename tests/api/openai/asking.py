"""Sends one request to a fake daemon and parses the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.api.fakes import FakeGeneration, client


async def ask(generation: FakeGeneration, path: str, body: Mapping[str, object]) -> tuple[int, Any]:
    async with client(generation) as http, http.post(path, json=body) as reply:
        return reply.status, await reply.json()


async def stream_of(generation: FakeGeneration, path: str, body: Mapping[str, object]) -> list[Any]:
    """Return the data of every event; check the framing."""
    sent = dict(body) | {"stream": True}
    async with client(generation) as http, http.post(path, json=sent) as reply:
        text = await reply.text()
        assert reply.status == 200, text
        assert reply.headers["Content-Type"] == "text/event-stream"
    *framed, rest = text.split("\n\n")
    assert rest == ""
    return [_data(event) for event in framed]


def _data(event: str) -> Any:
    """Check that a named event has its name in its data too."""
    *head, line = event.split("\n")
    data = line.removeprefix("data: ")
    assert data != line
    if data == "[DONE]":
        return data
    value = json.loads(data)
    assert head == ([f"event: {value['type']}"] if "sequence_number" in value else [])
    return value
