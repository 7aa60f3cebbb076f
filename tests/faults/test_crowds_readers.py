"""Clients that do not read their answers: bounded memory, a time limit, no delay for others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from specd.daemon.connection import enable_keepalive
from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.faults.conftest import post
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

MIB = 2**20
FLOOD = post("/api/generate", b'{"model":"m","prompt":"flood","keep_alive":0}')


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, **variables: str) -> AsyncIterator[Daemon]:
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    with (tmp_path / "log").open("wb") as log:
        async with running(tmp_path, engine=FAKE_ENGINE, log=log.fileno(), **variables) as daemon:
            yield daemon
    assert "Traceback" not in (tmp_path / "log").read_text()


class Deaf:
    """A client that has asked and reads nothing: the window that it offers fills up and stays so.

    The daemon sees the same from a stopped client, or one whose machine sleeps.
    """

    def __init__(self, daemon: Daemon, raw: bytes) -> None:
        host, _, port = daemon.url.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        # As on a network: on the loopback a segment has 64 KiB, and a smaller window is none.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        self.socket.connect((host, int(port)))
        self.port = int(self.socket.getsockname()[1])
        self.socket.sendall(raw)

    def rest(self) -> bytes:
        """Return all data up to the end of the connection or its reset."""
        self.socket.settimeout(120)
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(MIB):
                found += piece
        return bytes(found)


def clients_of(daemon: Daemon) -> set[int]:
    """Return the ports of the daemon's connections."""
    found = psutil.Process(daemon.process.pid).net_connections("tcp")
    return {connection.raddr.port for connection in found if connection.status == "ESTABLISHED"}


async def until_gone(daemon: Daemon, deaf: Deaf) -> None:
    await wait_until(lambda: deaf.port not in clients_of(daemon))


@pytest.mark.system
async def test_a_client_that_reads_nothing_is_disconnected_and_frees_its_model(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, SPECD_CLIENT_TIMEOUT="2s") as daemon:
        deaf = Deaf(daemon, FLOOD)
        await wait_until(lambda: bool(daemon.engines()))
        engines = daemon.engines()
        await until_gone(daemon, deaf)
        # keep_alive 0: the engine ends as soon as no request uses it.
        assert await ended(engines)
        assert (await daemon.answer("a"))[-1]["done"]
        deaf.socket.close()


@pytest.mark.system
async def test_many_clients_that_do_not_read_use_little_memory_and_delay_no_one_else(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, SPECD_CLIENT_TIMEOUT="1h") as daemon:
        process = psutil.Process(daemon.process.pid)
        await daemon.answer("a")
        before = process.memory_info().rss
        crowd = [Deaf(daemon, FLOOD) for _ in range(4)]
        for deaf in crowd:
            await asyncio.to_thread(deaf.socket.recv, 1)  # the engine is at it, one by one
        for n in range(10):
            words = [line["response"] for line in await daemon.answer(f"w{n} x")]
            assert words == [f"w{n} ", "x ", ""]
        assert process.memory_info().rss - before < len(crowd) * 64 * MIB
        for deaf in crowd:
            deaf.socket.close()
            await until_gone(daemon, deaf)
        assert (await daemon.answer("a"))[-1]["done"]


@pytest.mark.system
async def test_a_client_that_reads_too_late_gets_an_error_at_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        deaf = Deaf(daemon, FLOOD)
        await asyncio.to_thread(deaf.socket.recv, 1)  # the engine is at it
        await daemon.answer("a")  # and has sent the whole answer
        *_, last = (await asyncio.to_thread(deaf.rest)).strip().split(b"\n{")
        assert b'"error":"the answer was not read: 65536 tokens are waiting"' in last
        deaf.socket.close()


@pytest.mark.system
async def test_a_slow_reader_gets_the_whole_answer(tmp_path: Path) -> None:
    """Each read restarts the client's timeout."""
    words = " ".join(f"w{n}" for n in range(60_000))
    ask = post("/api/generate", b'{"model":"m","prompt":"%s"}' % words.encode())
    async with serving(tmp_path, SPECD_CLIENT_TIMEOUT="4s") as daemon:
        slow = Deaf(daemon, ask)
        slow.socket.setblocking(False)
        loop, found = asyncio.get_running_loop(), bytearray()
        for _ in range(30):
            found += await loop.sock_recv(slow.socket, 16 * 1024)
            await asyncio.sleep(0.3)
        while piece := await loop.sock_recv(slow.socket, MIB):
            found += piece
        assert b'"response":"w59999 "' in found
        assert b'"done":true' in found
        slow.socket.close()


@pytest.mark.system
async def test_clients_that_do_not_read_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    async with serving(tmp_path, SPECD_SHUTDOWN_GRACE="0s") as daemon:
        crowd = [Deaf(daemon, FLOOD) for _ in range(3)]
        await daemon.answer("a")
        engines = daemon.engines()
        daemon.process.terminate()
        assert await daemon.process.wait() == 0
        assert await ended(engines)
        for deaf in crowd:
            deaf.socket.close()


async def test_tcp_keepalive_is_enabled_for_clients() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as ours,
    ):
        enable_keepalive(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
