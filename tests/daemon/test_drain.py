"""A server that stops accepting, and those whom it has accepted before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from specd.daemon.drain import ConnectionDrain

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class FakeServer:
    """A server that answers `hello`, and stops as the daemon does."""

    def __init__(self) -> None:
        async def hello(_: web.Request) -> web.Response:
            return web.Response(text="hello")

        app = web.Application()
        app.router.add_get("/", hello)
        self.runner = web.AppRunner(app, shutdown_timeout=1)
        self.drain = ConnectionDrain(app)

    async def open(self) -> None:
        await self.runner.setup()
        self.site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await self.site.start()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Accepted."""
        assert self.runner.server is not None
        before = len(self.runner.server.connections)
        streams = await asyncio.open_connection(*self.runner.addresses[0][:2])
        while len(self.runner.server.connections) == before:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        return streams


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.open()
    yield server
    await server.runner.cleanup()


async def test_who_asks_after_the_stop_began_is_answered(server: FakeServer) -> None:
    reader, writer = await server.connect()
    await server.site.stop()
    hearing = asyncio.create_task(server.drain.wait(server.runner, timeout_s=60))
    done, _ = await asyncio.wait({hearing}, timeout=0.1)
    assert not done
    writer.write(ASK)
    await hearing
    await server.runner.cleanup()
    assert (await reader.read()).endswith(b"hello")
    writer.close()


async def test_who_has_asked_before_is_not_waited_for(server: FakeServer) -> None:
    reader, writer = await server.connect()
    writer.write(ASK)
    await reader.readuntil(b"hello")
    await server.drain.wait(server.runner, timeout_s=3600)
    writer.close()


async def test_who_never_asks_is_given_up(server: FakeServer) -> None:
    reader, writer = await server.connect()
    await server.drain.wait(server.runner, timeout_s=0.02)
    await server.runner.cleanup()
    assert await reader.read() == b""
    writer.close()


async def test_who_goes_without_asking_is_not_waited_for(server: FakeServer) -> None:
    _, writer = await server.connect()
    hearing = asyncio.create_task(server.drain.wait(server.runner, timeout_s=3600))
    writer.close()
    await hearing
