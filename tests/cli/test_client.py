"""The clients' handling of answers, errors and an unreachable daemon."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from aiohttp import web

from specd.cli.client import Client
from specd.cli.sync_client import DaemonRefused, DaemonUnreachable, SyncClient
from tests.cli.fake_daemon import FakeDaemon


async def collect(client: Client) -> list[dict[str, object]]:
    return [part async for part in client.stream("/api/generate", {"model": "m"})]


async def test_get_returns_the_object() -> None:
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


async def test_an_error_in_mid_stream_keeps_the_daemons_text() -> None:
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
async def test_an_error_answer_keeps_status_and_text(answer: object, said: str) -> None:
    daemon = FakeDaemon({"/api/show": answer}, status={"/api/show": 404})
    async with daemon.serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused) as caught:
            await client.post("/api/show", {})
        with pytest.raises(DaemonRefused) as caught_too:
            await asyncio.to_thread(SyncClient(url).post, "/api/show", {})
    assert caught.value.status == caught_too.value.status == 404
    assert str(caught.value) == str(caught_too.value) == said


async def test_an_unreachable_daemon_is_an_error_with_a_remedy() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(DaemonUnreachable, match=r"specd serve.*OLLAMA_HOST"):
        SyncClient(url).get("/api/tags")
    async with Client(url) as client:
        with pytest.raises(DaemonUnreachable, match="specd serve"):
            await client.get("/api/tags")
        with pytest.raises(DaemonUnreachable, match="OLLAMA_HOST"):
            await collect(client)


async def test_a_request_has_path_body_and_key() -> None:
    seen: list[tuple[str, str]] = []

    class Keyed(FakeDaemon):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            seen.append((request.method, request.headers.get("Authorization", "")))
            return await super().handle(request)

    daemon = Keyed({"/below/api/show": {"a": 1}, "/below/api/delete": None})
    async with daemon.serve() as url:
        client = SyncClient(f"{url}/below", "0123456789abcdef")
        assert await asyncio.to_thread(client.post, "/api/show", {"model": "m"}) == {"a": 1}
        await asyncio.to_thread(client.send_request, "DELETE", "/api/delete", {"model": "m"})
    assert daemon.asked == [
        ("/below/api/show", {"model": "m"}),
        ("/below/api/delete", {"model": "m"}),
    ]
    assert seen == [(method, "Bearer 0123456789abcdef") for method in ("POST", "DELETE")]


@pytest.mark.parametrize(
    "answer,error",
    [
        (b"", DaemonUnreachable),
        (b"SSH-2.0\r\n", DaemonUnreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", DaemonUnreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", DaemonRefused),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", DaemonRefused),
    ],
)
def test_another_server_is_an_error_without_a_traceback(
    answer: bytes, error: type[Exception]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            SyncClient(f"http://127.0.0.1:{server.getsockname()[1]}").get("/api/tags")
        thread.join()


@pytest.mark.parametrize("name", ["x" * 300, "a..b", "no host"])
def test_an_invalid_host_name_is_unreachable(name: str) -> None:
    with pytest.raises(DaemonUnreachable):
        SyncClient(f"http://{name}:1").get("/api/tags")
