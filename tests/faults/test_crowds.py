"""More connections than file descriptors, and silent clients: other requests are served."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from specd.daemon.fd_limits import accept_backlog, max_connections, raise_limit
from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.faults.conftest import get, parsed, post
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ASK = post("/api/generate", b'{"model":"m","prompt":"a b","stream":false}')
HANG = post("/api/generate", b'{"model":"m","prompt":"hang"}')
#: What a silent client has sent before it stops.
SILENT = {
    "nothing": b"",
    "half a line": b"POST /api/gen",
    "half a header": b"POST /api/generate HTTP/1.1\r\nHost: local",
    "no body": b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    "half a body": ASK[:-5],
    "half a chunk": b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc",
    "half a blob": b"POST /api/blobs/sha256:" + b"0" * 64 + b" HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 900\r\n\r\nabc",
    "idle": b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@contextlib.asynccontextmanager
async def crowded(
    tmp_path: Path, n_descriptors: int = 0, **variables: str
) -> AsyncIterator[Daemon]:
    """Yield a daemon.  n_descriptors: its RLIMIT_NOFILE, soft and hard; 0 keeps the current one."""
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    limit = f'ulimit -n {n_descriptors}; exec "$@"' if n_descriptors else 'exec "$@"'
    with (tmp_path / "log").open("wb") as log:
        under = ("sh", "-c", limit, "sh")
        async with running(
            tmp_path, engine=FAKE_ENGINE, log=log.fileno(), under=under, **variables
        ) as daemon:
            yield daemon


class Crowd:
    """Raw connections to a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        host, _, port = daemon.url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._streams: list[Stream] = []

    async def add(self, raw: bytes = b"") -> Stream:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(raw)
        self._streams.append((reader, writer))
        return reader, writer

    async def answered(self, raw: bytes) -> int:
        """Return the status, or 0 if the daemon closed the connection."""
        reader, _ = await self.add(raw)
        with contextlib.suppress(ConnectionError):
            reply = parsed(await reader.read())
            return reply.status if reply is not None else 0
        return 0

    async def leave(self) -> None:
        for _, writer in self._streams:
            writer.transport.abort()
        for _, writer in self._streams:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._streams.clear()


@contextlib.asynccontextmanager
async def crowd_at(daemon: Daemon) -> AsyncIterator[Crowd]:
    crowd = Crowd(daemon)
    try:
        yield crowd
    finally:
        await crowd.leave()


def n_connections(daemon: Daemon) -> int:
    found = psutil.Process(daemon.process.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


# --------------------------------------------------------------------------- file descriptors


async def test_idle_connections_are_closed_so_that_an_engine_can_start(tmp_path: Path) -> None:
    async with crowded(tmp_path, 64) as daemon, crowd_at(daemon) as crowd:
        process = psutil.Process(daemon.process.pid)
        before = process.num_fds()
        silent = [await crowd.add(raw) for raw in SILENT.values() for _ in range(20)]
        assert await crowd.answered(ASK) == 200
        assert process.num_fds() < 64
        assert daemon.engines()
        first, *_, last = silent
        # The daemon closed the oldest silent connection, and keeps the newest open.
        assert await first[0].read() == b""
        assert not last[0].at_eof()
        await crowd.leave()
        assert (await daemon.answer("a", keep_alive=0))[-1]["done"]
        assert await ended(daemon.engines())
        await wait_until(lambda: process.num_fds() <= before + 1)
    log = (tmp_path / "log").read_text()
    assert log.count("connections is reached; closing idle ones") == 1
    assert "Traceback" not in log


@pytest.mark.system
async def test_answers_continue_while_new_connections_are_refused(tmp_path: Path) -> None:
    async with crowded(tmp_path, 64) as daemon, crowd_at(daemon) as crowd:
        process = psutil.Process(daemon.process.pid)
        at_work = [await crowd.add(HANG) for _ in range(max_connections(64))]
        for reader, _ in at_work:
            assert b"200 OK" in await reader.readline()
        spent = process.cpu_times().user
        refused = [parsed(await (await crowd.add())[0].read()) for _ in range(40)]
        assert {reply.status for reply in refused if reply is not None} == {503}
        assert refused[0] is not None
        assert refused[0].json == {"error": "server busy: too many connections"}
        # A refusal is cheap, and the daemon does not spin while it has no capacity.
        assert process.cpu_times().user - spent < 5
        assert not any(reader.at_eof() for reader, _ in at_work)
        for reader, _ in at_work[:-1]:
            assert await reader.readuntil(b"last words")
        at_work[0][1].transport.abort()
        while await crowd.answered(ASK) != 200:
            pass
    log = (tmp_path / "log").read_text()
    assert log.count("none is idle: refusing new ones") == 1
    assert "Traceback" not in log


@pytest.mark.system
async def test_running_out_of_file_descriptors_is_logged_and_the_daemon_recovers(
    tmp_path: Path,
) -> None:
    """The daemon accepts no connection until descriptors are free again."""
    async with crowded(tmp_path, 64) as daemon, crowd_at(daemon) as crowd:
        process = psutil.Process(daemon.process.pid)
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        async with daemon.generate("hang") as response:
            await response.content.readline()
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds(), hard))
            # This client's connection is already open, so the daemon can answer it.
            async with daemon.http.get("/api/version") as version:
                assert version.status == 200
            waiting = asyncio.ensure_future(crowd.answered(get("/api/version")))
            log = tmp_path / "log"
            await wait_until(lambda: "cannot accept connections now" in log.read_text())
            assert not waiting.done()
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, hard))
            assert await waiting == 200
            assert not response.content.at_eof()
        assert (await daemon.answer("a"))[-1]["done"]
    assert (tmp_path / "log").read_text().count("cannot accept connections now") == 1


@pytest.mark.system
async def test_an_engine_start_without_free_file_descriptors_gets_a_clear_error(
    tmp_path: Path,
) -> None:
    async with crowded(tmp_path, 64) as daemon:
        process = psutil.Process(daemon.process.pid)
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        async with daemon.http.get("/api/version"):
            pass
        # Enough to read the model's files, one after the other.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + 2, hard))
        async with daemon.generate("a", stream=False) as response:
            assert response.status == 500
            assert "Too many open files" in (await response.json())["error"]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, hard))
        assert (await daemon.answer("a"))[-1]["done"]


def test_the_file_descriptor_limit_is_raised_to_the_allowed_maximum() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_limit() == min(hard, 65_536)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("n", [20, 64, 256, 1024, 4096, 65_536])
def test_accepted_connections_never_use_reserved_file_descriptors(n: int) -> None:
    assert 0 < max_connections(n) < n
    assert 0 < accept_backlog(n) <= (n - max_connections(n)) / 2


# --------------------------------------------------------------------------- silence


async def test_a_silent_client_is_disconnected(tmp_path: Path) -> None:
    async with (
        crowded(tmp_path, SPECD_CLIENT_TIMEOUT="1s") as daemon,
        crowd_at(daemon) as crowd,
    ):
        readers = {said: (await crowd.add(raw))[0] for said, raw in SILENT.items()}
        said = {said: await reader.read() for said, reader in readers.items()}
        assert said.pop("idle").startswith(b"HTTP/1.1 200 OK")
        assert set(said.values()) == {b""}
        assert await crowd.answered(ASK) == 200


@pytest.mark.system
async def test_a_client_that_sends_or_is_being_answered_is_not_disconnected(tmp_path: Path) -> None:
    async with (
        crowded(tmp_path, SPECD_CLIENT_TIMEOUT="1s") as daemon,
        crowd_at(daemon) as crowd,
        daemon.generate("hang") as response,
    ):
        await response.content.readline()
        reader, writer = await crowd.add(ASK[:-8])
        for byte in ASK[-8:]:
            await asyncio.sleep(0.4)
            writer.write(bytes((byte,)))
        reply = parsed(await reader.read())
        assert reply is not None
        assert reply.status == 200
        assert not response.content.at_eof()


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_a_thousand_half_open_connections_block_no_other_client(tmp_path: Path) -> None:
    async with crowded(tmp_path) as daemon, crowd_at(daemon) as crowd:
        process = psutil.Process(daemon.process.pid)
        assert (await daemon.answer("a"))[-1]["done"]
        n_before, bytes_before = process.num_fds(), process.memory_info().rss
        for raw in SILENT.values():
            for _ in range(1000 // len(SILENT)):
                await crowd.add(raw)
        await wait_until(lambda: n_connections(daemon) > 1000)
        for _ in range(20):
            assert await crowd.answered(ASK) == 200
        assert process.memory_info().rss - bytes_before < 100 * 2**20
        await crowd.leave()
        await wait_until(lambda: process.num_fds() <= n_before + 1)


@pytest.mark.system
async def test_silent_clients_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    async with crowded(tmp_path, SPECD_SHUTDOWN_GRACE="1h") as daemon, crowd_at(daemon) as crowd:
        for raw in SILENT.values():
            for _ in range(25):
                await crowd.add(raw)
        await wait_until(lambda: n_connections(daemon) >= 25 * len(SILENT))
        daemon.process.terminate()
        assert await daemon.process.wait() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
