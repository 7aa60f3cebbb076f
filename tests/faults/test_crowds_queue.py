"""Thousands of requests wait for a model: refused, answered in order, or cancelled at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.faults.conftest import parsed, post
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

pytestmark = pytest.mark.system

MIB = 2**20
BUSY = {"error": "server busy, please try again.  maximum pending requests exceeded"}


@dataclass(slots=True)
class Queued:
    """A daemon whose only loaded model is in use: requests for another wait until `free`."""

    daemon: Daemon
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def ask(self, n: int) -> None:
        host, _, port = self.daemon.url.removeprefix("http://").rpartition(":")
        for i in range(n):
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps({"model": "other", "prompt": f"w{i}", "stream": False})
            writer.write(post("/api/generate", body.encode()))
            self.streams.append((reader, writer))

    async def answers(self) -> list[dict[str, str]]:
        """Return the answers in the order of their requests."""
        replies = [parsed(await reader.read()) for reader, _ in self.streams]
        return [reply.json if reply is not None else {} for reply in replies]

    def leave(self) -> None:
        for _, writer in self.streams:
            writer.transport.abort()
        self.streams.clear()


@contextlib.asynccontextmanager
async def queued(tmp_path: Path, **variables: str) -> AsyncIterator[tuple[Queued, asyncio.Event]]:
    """Yield the queue, and the event that frees the model."""
    store = OllamaStore(tmp_path / "models")
    for name in ("m", "other"):
        store.add(name, weights=write_llama(tmp_path / f"{name}.gguf", chat_template=None))
    with (tmp_path / "log").open("wb") as log:
        async with running(
            tmp_path,
            engine=FAKE_ENGINE,
            log=log.fileno(),
            OLLAMA_MAX_LOADED_MODELS="1",
            **variables,
        ) as daemon:
            response = await daemon.generate("hang").__aenter__()
            await response.content.readline()
            free = asyncio.Event()

            async def leave() -> None:
                await free.wait()
                response.close()

            leaving = asyncio.ensure_future(leave())
            it = Queued(daemon)
            yield it, free
            it.leave()
            free.set()
            await leaving
            if daemon.process.returncode is None:
                assert (await daemon.answer("a"))[-1]["done"]
                assert (await daemon.answer("a", keep_alive=0))[-1]["done"]
                assert await ended(daemon.engines())
    assert "Traceback" not in (tmp_path / "log").read_text()


async def n_waiting(daemon: Daemon) -> int:
    async with daemon.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    waiting = [line for line in lines if line.startswith("specd:num_requests_waiting{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in waiting)


async def until_waiting(daemon: Daemon, n: int) -> None:
    async def are_waiting() -> bool:
        return await n_waiting(daemon) >= n

    await wait_until(are_waiting, every_s=0.05)


async def test_a_request_that_finds_the_queue_full_is_refused_at_once(tmp_path: Path) -> None:
    async with queued(tmp_path, OLLAMA_MAX_QUEUE="20") as (it, free):
        await it.ask(60)
        first = [asyncio.ensure_future(reader.read()) for reader, _ in it.streams]
        # The head of the queue does not count.
        while sum(answer.done() for answer in first) < 39:
            await asyncio.wait(
                [a for a in first if not a.done()], return_when=asyncio.FIRST_COMPLETED
            )
        for answer in first:
            if answer.done():
                reply = parsed(answer.result())
                assert reply is not None
                assert (reply.status, reply.json) == (503, BUSY)
        free.set()
        replies = [parsed(raw) for raw in await asyncio.gather(*first)]
        assert sum(reply is not None and reply.status == 200 for reply in replies) == 21


async def test_hundreds_of_queued_requests_are_cancelled_at_once(tmp_path: Path) -> None:
    async with queued(tmp_path) as (it, _):
        process = psutil.Process(it.daemon.process.pid)
        before = process.num_fds()
        await it.ask(300)
        await until_waiting(it.daemon, 300)
        it.leave()
        await wait_until(lambda: process.num_fds() <= before + 1)
        while await n_waiting(it.daemon):
            pass


# --------------------------------------------------------------------------- ten thousand

N = 10_000


@pytest.fixture
def descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * N:
        pytest.skip(f"{2 * N} file descriptors are needed, and {hard} may be had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.timeout(580)
@pytest.mark.usefixtures("descriptors")
async def test_ten_thousand_queued_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with queued(tmp_path, OLLAMA_MAX_QUEUE="20000") as (it, free):
        process = psutil.Process(it.daemon.process.pid)
        before = process.memory_info().rss
        await it.ask(N)
        await until_waiting(it.daemon, N)
        assert process.memory_info().rss - before < 600 * MIB
        async with it.daemon.http.get("/api/version") as version:
            assert version.status == 200
        free.set()
        answers = await it.answers()
        assert [answer["response"] for answer in answers] == [f"w{n} " for n in range(N)]
        turns = sorted(range(N), key=lambda n: answers[n]["created_at"])
        # Threads that read models and render prompts may overtake each other, by as many as they
        # have in hand, and no further.
        assert max(abs(turn - n) for turn, n in enumerate(turns)) < 500


@pytest.mark.timeout(580)
@pytest.mark.usefixtures("descriptors")
async def test_ten_thousand_queued_requests_are_cancelled_at_once(tmp_path: Path) -> None:
    async with queued(tmp_path, OLLAMA_MAX_QUEUE="20000") as (it, _):
        process = psutil.Process(it.daemon.process.pid)
        before = process.num_fds()
        await it.ask(N)
        await until_waiting(it.daemon, N)
        spent = process.cpu_times().user
        it.leave()
        await wait_until(lambda: process.num_fds() <= before + 1)
        while await n_waiting(it.daemon):
            pass
        # If each request looked at all others, this would take minutes.
        assert process.cpu_times().user - spent < 20


@pytest.mark.timeout(580)
@pytest.mark.usefixtures("descriptors")
async def test_ten_thousand_queued_requests_get_an_error_at_shutdown(tmp_path: Path) -> None:
    async with queued(tmp_path, OLLAMA_MAX_QUEUE="20000") as (it, free):
        await it.ask(N)
        await until_waiting(it.daemon, N)
        engines = it.daemon.engines()
        it.daemon.process.terminate()
        answers = await it.answers()
        assert all(answer == {"error": "server is shutting down"} for answer in answers)
        free.set()
        assert await it.daemon.process.wait() == 0
        assert await ended(engines)
