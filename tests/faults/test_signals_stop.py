"""SIGTERM and SIGINT at every moment: each request ends exactly once, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.faults.test_crowds_queue import until_waiting
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.fake_registry import FakeRegistry, stall
from tests.waiting import wait_until

pytestmark = pytest.mark.system

#: The fake engine, which quantizes for ever.
ENGINE = (
    "sh",
    "-c",
    'case " $* " in *" quantize "*) exec sleep 600;; esac; exec "$@"',
    "sh",
    *FAKE_ENGINE,
)


@dataclass(slots=True)
class Watched:
    """A daemon, and clients that see their requests to the end."""

    daemon: Daemon
    store: OllamaStore
    faults: Path
    registry: FakeRegistry
    asking: list[asyncio.Task[tuple[int, bytes]]] = field(default_factory=list)

    def ask(self, path: str, **body: object) -> None:
        async def see() -> tuple[int, bytes]:
            async with self.daemon.http.post(path, json=body) as response:
                return response.status, await response.read()

        self.asking.append(asyncio.ensure_future(see()))

    def generate(self, prompt: str, *, stream: bool, model: str = "m") -> None:
        self.ask("/api/generate", model=model, prompt=prompt, stream=stream)

    def will(self, fault: str) -> None:
        """Set the fault of the next engine of "m"."""
        (self.faults / self.store.weights_path("m").name).write_text(fault, encoding="ascii")

    async def until_there(self, moment: str) -> None:
        """Wait until the engine has reached the fault."""
        path = self.faults / self.store.weights_path("m").name
        await wait_until(lambda: moment not in path.read_text(encoding="ascii"))

    async def ends(self) -> list[dict[str, Any]]:
        """Return the last line of each answer; no other line is an error or an end."""
        found = []
        for status, raw in await asyncio.gather(*self.asking):
            *lines, last = [json.loads(line) for line in raw.splitlines()]
            assert not any("error" in line or line.get("done") for line in lines), lines
            assert lines or ("error" in last) is (status != 200), (status, last)
            found.append(last)
        return found


@contextlib.asynccontextmanager
async def watched(tmp_path: Path, **variables: str) -> AsyncIterator[Watched]:
    store = OllamaStore(tmp_path / "models")
    for name in ("m", "other"):
        store.add(name, weights=write_llama(tmp_path / f"{name}.gguf", chat_template=None))
    faults = tmp_path / "faults"
    faults.mkdir()
    settings = {"FAKE_FAULTS": str(faults), "HOME": str(tmp_path)} | variables
    with (tmp_path / "log").open("wb") as log:
        async with (
            FakeRegistry().serve() as registry,
            running(tmp_path, engine=ENGINE, log=log.fileno(), **settings) as daemon,
        ):
            it = Watched(daemon, store, faults, registry)
            yield it
            for asked in it.asking:
                asked.cancel()
            await asyncio.gather(*it.asking, return_exceptions=True)
    assert "Traceback" not in (tmp_path / "log").read_text()


Situation = Callable[[Watched, bool], Awaitable[None]]


async def loading(it: Watched, stream: bool) -> None:
    it.will("load block")
    it.generate("a", stream=stream)
    await it.until_there("load")


async def reading(it: Watched, stream: bool) -> None:
    it.will("prefill block")
    it.generate("a", stream=stream)
    await it.until_there("prefill")


async def speaking(it: Watched, stream: bool) -> None:
    it.will("decode block")
    it.generate("a b c", stream=stream)
    await it.until_there("decode")


async def waiting(it: Watched, stream: bool) -> None:
    await reading(it, stream)
    for _ in range(5):
        it.generate("a", model="other", stream=stream)
    await until_waiting(it.daemon, 5)


async def pulling(it: Watched, stream: bool) -> None:
    it.registry.add("ns/x/y", b"weights" * 10_000)
    stalled = asyncio.Event()
    it.registry.faults.append(stall(1000, stalled))
    it.ask("/api/pull", model=it.registry.name("ns/x/y"), insecure=True, stream=stream)
    coming = asyncio.ensure_future(stalled.wait())
    await asyncio.wait({coming, *it.asking}, return_when=asyncio.FIRST_COMPLETED)
    assert coming.done(), it.asking


async def sending_a_blob(it: Watched, _: bool) -> None:
    begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"weights"
        begun.set()
        await asyncio.Event().wait()

    async def see() -> tuple[int, bytes]:
        path = f"/api/blobs/sha256:{'0' * 64}"
        with contextlib.suppress(aiohttp.ClientError):
            async with it.daemon.http.post(path, data=body()) as response:
                return response.status, await response.read()
        return 500, b'{"error":"hung up"}'  # an unfinished request may end with a closed connection

    it.asking.append(asyncio.ensure_future(see()))
    await begun.wait()


async def creating(it: Watched, stream: bool) -> None:
    it.ask("/api/create", model="new", **{"from": "m"}, quantize="q8_0", stream=stream)

    def is_quantizing() -> bool:
        return any(child.name() == "sleep" for child in it.daemon.children())

    await wait_until(is_quantizing)


SITUATIONS: list[Situation] = [loading, reading, speaking, waiting, pulling, creating]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("situation", [*SITUATIONS, sending_a_blob])
async def test_without_a_grace_period_every_request_ends_with_an_error(
    tmp_path: Path, situation: Situation, stream: bool
) -> None:
    settings = {"OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_MAX_QUEUE": "4"}
    async with watched(tmp_path, SPECD_SHUTDOWN_GRACE="0s", **settings) as it:
        await situation(it, stream)
        children = it.daemon.children()
        it.daemon.process.send_signal(signal.SIGTERM)
        for end in await it.ends():
            assert "error" in end, end
        assert await it.daemon.process.wait() == 0
        assert await ended(children)


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_second_signal_ends_the_grace_period(tmp_path: Path, situation: Situation) -> None:
    settings = {"OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_MAX_QUEUE": "4"}
    async with watched(tmp_path, SPECD_SHUTDOWN_GRACE="1h", **settings) as it:
        await situation(it, True)
        children = it.daemon.children()
        it.daemon.process.send_signal(signal.SIGINT)
        await it.daemon.told("STOPPING=1")
        it.daemon.process.send_signal(signal.SIGTERM)
        for end in await it.ends():
            assert "error" in end, end
        assert await it.daemon.process.wait() == 0
        assert await ended(children)


async def test_a_third_signal_kills_the_daemon_at_once(tmp_path: Path) -> None:
    async with watched(tmp_path, SPECD_SHUTDOWN_GRACE="1h") as it:
        # A stopped engine handles no signal, so the daemon still waits for it at the next signal.
        it.will("decode stop")
        it.generate("a b", stream=True)
        await it.until_there("decode")
        children = it.daemon.children()
        it.daemon.process.send_signal(signal.SIGTERM)
        await it.daemon.told("STOPPING=1")
        it.daemon.process.send_signal(signal.SIGTERM)
        process = psutil.Process(it.daemon.process.pid)
        # Given back to the kernel: the second has been heard.
        await wait_until(lambda: not _catches(process, signal.SIGTERM))
        it.daemon.process.send_signal(signal.SIGTERM)
        assert await it.daemon.process.wait() == -signal.SIGTERM
        assert await ended(children)
        [seen] = await asyncio.gather(*it.asking, return_exceptions=True)
        if not isinstance(seen, aiohttp.ClientError):
            assert not isinstance(seen, BaseException)
            assert b'"error"' in seen[1]


def _catches(process: psutil.Process, number: int) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


async def test_an_answer_that_ends_within_the_grace_period_is_complete(tmp_path: Path) -> None:
    settings = {"SPECD_SHUTDOWN_GRACE": "1h", "SPECD_ENGINE_TIMEOUT": "2s"}
    async with watched(tmp_path, **settings) as it:
        it.generate("slow", stream=False)
        while not await _loaded(it.daemon):
            pass
        it.daemon.process.send_signal(signal.SIGTERM)
        [end] = await it.ends()
        assert end["done"]
        assert await it.daemon.process.wait() == 0


async def _loaded(daemon: Daemon) -> list[Any]:
    async with daemon.http.get("/api/ps") as response:
        models: list[Any] = (await response.json())["models"]
        return models


async def test_a_signal_during_the_start_ends_the_daemon_cleanly(tmp_path: Path) -> None:
    """The signal comes while llama.cpp lists its devices, which can take long."""
    store = OllamaStore(tmp_path / "models")
    store.add("m", weights=write_llama(tmp_path / "m.gguf", chat_template=None))
    starting = running(tmp_path, engine=FAKE_ENGINE, log=None, FAKE_DEVICES="hang")
    entering = asyncio.ensure_future(starting.__aenter__())
    me = psutil.Process()

    def asked() -> list[psutil.Process]:
        return [child for child in me.children(recursive=True) if "devices" in child.cmdline()]

    await wait_until(lambda: bool(asked()))
    [child] = asked()
    daemon = child.parent()
    assert daemon is not None
    daemon.send_signal(signal.SIGTERM)
    child.kill()
    ready = await entering
    assert await ready.process.wait() == 0
    await starting.__aexit__(None, None, None)
    assert await ended([child])
