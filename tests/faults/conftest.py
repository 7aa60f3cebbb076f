"""Fixtures: a daemon under hostile input, while another client reads an answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import OllamaStore, write_llama


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    type: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Wire:
    """Raw connections to the daemon.  The model "m" says the prompt's own words."""

    daemon: Daemon
    log: Path

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a connection that ends with a reset, unless it was closed before."""
        host, _, port = self.daemon.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def send(self, raw: bytes, *, eof: bool = False) -> Reply | None:
        """Return the answer, or None if the daemon sent none.  eof: end the input after `raw`."""
        answer = bytearray()
        async with self.connect() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(raw)
                if eof:
                    writer.write_eof()
                await writer.drain()
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(2**16):
                    answer += piece
        return parsed(bytes(answer))

    def peak_bytes(self) -> int:
        """Return the daemon's peak memory in bytes; without procfs, its current memory."""
        pid = self.daemon.process.pid
        path = Path(f"/proc/{pid}/status")
        if not path.exists():
            return int(psutil.Process(pid).memory_info().rss)
        status = path.read_text(encoding="ascii")
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024


def parsed(answer: bytes) -> Reply | None:
    if not answer:
        return None

    class Answer:
        def makefile(self, _: str) -> io.BytesIO:
            return io.BytesIO(answer)

    response = http.client.HTTPResponse(Answer())  # type: ignore[arg-type]
    response.begin()
    return Reply(response.status, response.getheader("Content-Type", ""), response.read())


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """Return a whole request that asks the server to close the connection."""
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Connection: close", *headers]
    if not any(line.startswith(("Content-Length", "Transfer-Encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mistreated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    folder = tmp_path_factory.mktemp("daemon")
    OllamaStore(folder / "models").add(
        "m", weights=write_llama(folder / "m.gguf", chat_template=None)
    )
    with (folder / "log").open("wb") as log:
        async with running(folder, engine=FAKE_ENGINE, log=log.fileno()) as daemon:
            yield Wire(daemon, folder / "log")


@pytest_asyncio.fixture(loop_scope="module")
async def wire(mistreated: Wire) -> AsyncIterator[Wire]:
    """After each test: other clients get answers, and the log has no internal error."""
    daemon = mistreated.daemon
    neighbour = asyncio.ensure_future(daemon.generate("drip").__aenter__())
    while not neighbour.done():
        await daemon.answer("x")
    async with neighbour.result() as response:
        yield mistreated
        # The daemon has read all earlier input once it answers this request.
        said = await daemon.answer("still here")
        assert [line.get("response") for line in said] == ["still ", "here ", ""]
        assert json.loads(await response.content.readline())["response"] == "drop "
        assert not response.content.at_eof()
    log = mistreated.log.read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in log
    assert "internal error" not in log
    assert daemon.process.returncode is None
    assert psutil.pid_exists(daemon.process.pid)
