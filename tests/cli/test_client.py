"""What the commands make of the daemon's answers, and of no answer."""

from __future__ import annotations

import socket

import pytest

from specd.cli.client import Client, DaemonRefused, DaemonUnreachable
from tests.cli.fake_daemon import FakeDaemon


async def collect(client: Client) -> list[dict[str, object]]:
    return [part async for part in client.stream("/api/generate", {"model": "m"})]


async def test_an_object_comes_back_whole() -> None:
    daemon = FakeDaemon({"/api/tags": {"models": []}})
    async with daemon.serve() as url, Client(url) as client:
        assert await client.get("/api/tags") == {"models": []}


async def test_a_stream_ends_with_its_done_object() -> None:
    parts = [{"response": "a"}, {"response": "", "done": True}]
    daemon = FakeDaemon({"/api/generate": parts})
    async with daemon.serve() as url, Client(url) as client:
        assert await collect(client) == parts
    assert daemon.asked == [("/api/generate", {"model": "m"})]


async def test_a_final_object_of_a_megabyte_is_read() -> None:
    parts = [{"done": True, "context": list(range(150_000))}]
    async with FakeDaemon({"/api/generate": parts}).serve() as url, Client(url) as client:
        assert await collect(client) == parts


async def test_an_error_in_mid_stream_is_the_daemons_own_sentence() -> None:
    parts = [{"response": "a"}, {"error": "the engine is gone"}]
    async with FakeDaemon({"/api/generate": parts}).serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused, match="the engine is gone"):
            await collect(client)


async def test_a_stream_that_breaks_off_is_an_error() -> None:
    parts = [{"response": "a"}]
    async with FakeDaemon({"/api/generate": parts}).serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused, match="in mid-answer"):
            await collect(client)


@pytest.mark.parametrize(
    "answer,said",
    [
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ({"error": {"message": "no such model"}}, "no such model"),
        ({"detail": "teapot"}, '{"detail": "teapot"}'),
    ],
)
async def test_a_refusal_carries_status_and_words(answer: object, said: str) -> None:
    daemon = FakeDaemon({"/api/show": answer}, status={"/api/show": 404})
    async with daemon.serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused) as caught:
            await client.post("/api/show", {})
    assert caught.value.status == 404
    assert str(caught.value) == said


async def test_nobody_at_the_address_is_said_with_what_to_do() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    async with Client(url) as client:
        with pytest.raises(DaemonUnreachable, match="specd serve"):
            await client.get("/api/tags")
        with pytest.raises(DaemonUnreachable, match="OLLAMA_HOST"):
            await collect(client)
