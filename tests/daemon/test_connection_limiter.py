"""Who gives way to whom where there is no room, and who is waited for; no daemon is needed."""

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
from specd.daemon import connection_limiter
from specd.daemon.connection import Connection
from specd.daemon.connection_limiter import ConnectionLimiter, LimitedAppRunner

MIB = 2**20
LARGE = b"x" * (32 * MIB)
BODY = b"y" * (8 * MIB)
TIMEOUT_S = 5.0


@dataclass
class FakeServer:
    """`/large` is LARGE; `/read` reads its body when `reads` is set, and says how long it was."""

    port: int = 0
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[web.Request] = field(default_factory=list)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)
    wires: set[asyncio.BaseTransport] = field(default_factory=set)

    async def large(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        return web.Response(body=LARGE)

    async def read(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        await self.reads.wait()
        return web.Response(text=str(len(await request.read())))

    def transport(self) -> asyncio.Transport:
        """Of the connection that asked last."""
        transport = self.asked[-1].transport
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
        await until(lambda: not self.wires)


@contextlib.asynccontextmanager
async def server(monkeypatch: pytest.MonkeyPatch, *, limit: int) -> AsyncIterator[FakeServer]:
    own = FakeServer()

    class Known(Connection):
        """So that none is left behind."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            own.wires.add(transport)
            super().connection_made(transport)

        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            if self._raw_transport is not None:
                own.wires.discard(self._raw_transport)

    monkeypatch.setattr(connection_limiter, "Connection", Known)
    app = web.Application(client_max_size=2 * len(BODY))
    app.add_routes([web.get("/large", own.large), web.post("/read", own.read)])
    app[EARLY_ERRORS] = EarlyErrors(metrics.Metrics())
    runner = LimitedAppRunner(
        app, limit=limit, timeout_s=TIMEOUT_S, handler_cancellation=True, shutdown_timeout=0.0
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    own.port = runner.addresses[0][1]
    try:
        yield own
    finally:
        await own.leave()
        await runner.cleanup()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the kernel's side of a socket tells nobody
        await asyncio.sleep(0)


class Later:
    """Time as the event loop has it, which can be brought forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self._ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead_s)

    async def after(self, seconds: float) -> None:
        """What is due by then is done."""
        self._ahead_s += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


# --------------------------------------------------------------------------- giving way


async def test_who_still_has_an_answer_to_take_gives_way_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server(monkeypatch, limit=1) as own:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", own.port))
        await loop.sock_sendall(slow, get("/large"))
        # The daemon has done its part, and waits for the next request.
        await until(lambda: bool(own.asked))
        transport = own.transport()
        await until(lambda: transport.get_write_buffer_size() > 0)
        reader = await own.connect(get("/large"))
        assert b"503 Service Unavailable" in await reader.readline()
        assert len(own.asked) == 1

        n_left = len(LARGE)
        head = await loop.sock_recv(slow, 4096)
        n_left -= len(head.partition(b"\r\n\r\n")[2])
        while n_left:
            n_left -= len(await loop.sock_recv(slow, MIB))
        await until(lambda: transport.get_write_buffer_size() == 0)
        reader = await own.connect(get("/large"))
        assert b"200 OK" in await reader.readline()
        assert await loop.sock_recv(slow, 1) == b"", "now it owes a request, and gives way"
        slow.close()


async def test_few_of_those_who_are_refused_keep_a_descriptor_for_a_moment(later: Later) -> None:
    its_door = ConnectionLimiter(
        web.Server(lambda _: web.Response()),  # type: ignore[arg-type, return-value]
        EarlyErrors(metrics.Metrics()),
        limit=16,
        timeout_s=TIMEOUT_S,
        options={},
    )
    assert [its_door.may_linger() for _ in range(6)] == [True] * 3 + [False] * 3
    await later.after(0.5)
    assert not its_door.may_linger()
    await later.after(0.6)
    assert [its_door.may_linger() for _ in range(4)] == [True] * 3 + [False]


# --------------------------------------------------------------------------- who is waited for

READ = b"POST /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


async def test_a_client_is_not_blamed_for_what_we_are_slow_to_read(
    later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(monkeypatch, limit=1) as own:
        reader = await own.connect(READ % len(BODY) + BODY)
        await until(lambda: bool(own.asked))
        transport = own.transport()
        await until(lambda: not transport.is_reading())
        for _ in range(4):
            await later.after(TIMEOUT_S - 1)
        assert not transport.is_closing()
        own.reads.set()
        assert (await reader.read()).endswith(b"\r\n\r\n%d" % len(BODY))


async def test_a_client_that_says_no_more_is_left_after_its_time(
    later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(monkeypatch, limit=1) as own:
        own.reads.set()
        reader = await own.connect(READ % 3 + b"y")
        await until(lambda: bool(own.asked))
        transport = own.transport()
        await later.after(TIMEOUT_S - 1)
        assert not transport.is_closing()
        await later.after(2)
        assert await reader.read() == b""
