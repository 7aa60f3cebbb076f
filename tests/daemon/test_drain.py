"""A server that stops accepting waits for the first requests of its open connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from specd import metrics
from specd.api.request_recorder import EARLY_ERRORS, EarlyErrors
from specd.daemon.http_server import HttpServer
from specd.daemon.sockets import bind
from specd.settings import HostAddress

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    """A server that answers `hello`."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    app[EARLY_ERRORS] = EarlyErrors(metrics.Metrics())
    server = HttpServer(app, limit=16, timeout_s=60.0, shutdown_timeout_s=1.0)
    await server.start(await bind(HostAddress("http", "127.0.0.1", 0)))
    yield server
    await server.close()


async def connect(server: HttpServer) -> Streams:
    """Connect; return once the server has accepted the connection."""
    streams = await asyncio.open_connection(*server.addresses[0][:2])
    while server.n_open == 0:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)
    return streams


async def test_a_request_after_the_stop_began_is_answered(server: HttpServer) -> None:
    reader, writer = await connect(server)
    server.stop_listening()
    waiting = asyncio.create_task(server.wait_for_first_requests(timeout_s=60))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    writer.write(REQUEST)
    await waiting
    await server.close()
    assert (await reader.read()).endswith(b"hello")
    writer.close()


async def test_a_connection_that_has_sent_a_request_is_not_waited_for(server: HttpServer) -> None:
    reader, writer = await connect(server)
    writer.write(REQUEST)
    await reader.readuntil(b"hello")
    await server.wait_for_first_requests(timeout_s=3600)
    writer.close()


async def test_a_connection_that_sends_nothing_is_given_up(server: HttpServer) -> None:
    reader, writer = await connect(server)
    await server.wait_for_first_requests(timeout_s=0.02)
    await server.close()
    assert await reader.read() == b""
    writer.close()


async def test_a_connection_that_closes_is_not_waited_for(server: HttpServer) -> None:
    _, writer = await connect(server)
    waiting = asyncio.create_task(server.wait_for_first_requests(timeout_s=3600))
    writer.close()
    await waiting
