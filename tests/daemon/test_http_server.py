"""Eviction of idle connections at the limit, and timeouts of clients that stall."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from specd import metrics
from specd.api.request_recorder import EARLY_ERRORS, EarlyErrors
from specd.daemon import http_server
from specd.daemon.connection import Connection
from specd.daemon.http_server import HttpServer
from specd.daemon.sockets import bind
from specd.settings import HostAddress

MIB = 2**20
LARGE = b"x" * (32 * MIB)
BODY = b"y" * (8 * MIB)
TIMEOUT_S = 5.0


@dataclass
class FakeServer:
    """`/large` answers LARGE; `/read` reads its body once `reads` is set, and answers its size."""

    port: int = 0
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[web.Request] = field(default_factory=list)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)
    transports: set[asyncio.BaseTransport] = field(default_factory=set)

    async def large(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        return web.Response(body=LARGE)

    async def read(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        await self.reads.wait()
        return web.Response(text=str(len(await request.read())))

    def transport(self) -> asyncio.Transport:
        """Return the transport of the last request."""
        transport = self.requests[-1].transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def connect(self, raw: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        writer.write(raw)
        return reader

    async def leave(self) -> None:
        for writer in self.clients:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await until(lambda: not self.transports)


@contextlib.asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, *, limit: int) -> AsyncIterator[FakeServer]:
    own = FakeServer()

    class Known(Connection):
        """A connection that the fake server counts, also if it is refused."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            own.transports.add(transport)
            super().connection_made(transport)

        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            if self._raw_transport is not None:
                own.transports.discard(self._raw_transport)

    monkeypatch.setattr(http_server, "Connection", Known)
    app = web.Application(client_max_size=2 * len(BODY))
    app.add_routes([web.get("/large", own.large), web.post("/read", own.read)])
    app[EARLY_ERRORS] = EarlyErrors(metrics.Metrics())
    server = HttpServer(app, limit=limit, timeout_s=TIMEOUT_S, shutdown_timeout_s=0.0)
    await server.start(await bind(HostAddress("http", "127.0.0.1", 0)))
    own.port = server.addresses[0][1]
    try:
        yield own
    finally:
        await own.leave()
        await server.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing announces a change of a socket in the kernel
        await asyncio.sleep(0)


class Later:
    """The event loop's time, which a test can advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self._ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead_s)

    async def after(self, seconds: float) -> None:
        """Advance the time, and run the callbacks that are due."""
        self._ahead_s += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


# --------------------------------------------------------------------------- eviction


async def test_a_connection_with_unsent_data_is_not_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(monkeypatch, limit=1) as own:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", own.port))
        await loop.sock_sendall(slow, get("/large"))
        # The handler has ended, and the daemon waits for the next request.
        await until(lambda: bool(own.requests))
        transport = own.transport()
        await until(lambda: transport.get_write_buffer_size() > 0)
        reader = await own.connect(get("/large"))
        assert b"503 Service Unavailable" in await reader.readline()
        assert len(own.requests) == 1

        n_left = len(LARGE)
        head = await loop.sock_recv(slow, 4096)
        n_left -= len(head.partition(b"\r\n\r\n")[2])
        while n_left:
            n_left -= len(await loop.sock_recv(slow, MIB))
        await until(lambda: transport.get_write_buffer_size() == 0)
        reader = await own.connect(get("/large"))
        assert b"200 OK" in await reader.readline()
        assert await loop.sock_recv(slow, 1) == b"", "the connection is idle now, so it is evicted"
        slow.close()


async def test_few_refused_connections_linger(later: Later) -> None:
    app = web.Application()
    app[EARLY_ERRORS] = EarlyErrors(metrics.Metrics())
    server = HttpServer(app, limit=16, timeout_s=TIMEOUT_S, shutdown_timeout_s=0.0)
    assert [server.may_linger() for _ in range(6)] == [True] * 3 + [False] * 3
    await later.after(0.5)
    assert not server.may_linger()
    await later.after(0.6)
    assert [server.may_linger() for _ in range(4)] == [True] * 3 + [False]


# --------------------------------------------------------------------------- stalled bodies

READ = b"POST /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


async def test_a_body_that_the_daemon_reads_slowly_is_not_stalled(
    later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(monkeypatch, limit=1) as own:
        reader = await own.connect(READ % len(BODY) + BODY)
        await until(lambda: bool(own.requests))
        transport = own.transport()
        await until(lambda: not transport.is_reading())
        for _ in range(4):
            await later.after(TIMEOUT_S - 1)
        assert not transport.is_closing()
        own.reads.set()
        assert (await reader.read()).endswith(b"\r\n\r\n%d" % len(BODY))


async def test_a_body_that_stops_closes_the_connection_after_the_timeout(
    later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(monkeypatch, limit=1) as own:
        own.reads.set()
        reader = await own.connect(READ % 3 + b"y")
        await until(lambda: bool(own.requests))
        transport = own.transport()
        await later.after(TIMEOUT_S - 1)
        assert not transport.is_closing()
        await later.after(2)
        assert await reader.read() == b""
