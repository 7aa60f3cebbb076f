"""Requests that aiohttp itself refuses: an id, a log line, a metric, no echo of the input."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from specd import __version__
from tests.daemon_process import FAKE_ENGINE, running
from tests.faults.conftest import Wire, get, post
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARK = "s3cr3t"
CHUNKED = "Transfer-Encoding: chunked"
HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r]+\r\n(.*?)\r\n\r\n(.*)", re.DOTALL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mistreated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    """Yield connections to a daemon that logs as `specd serve` does."""
    folder = tmp_path_factory.mktemp("daemon")
    weights = write_llama(folder / "m.gguf", chat_template=None)
    OllamaStore(folder / "models").add("m", weights=weights)
    with (folder / "log").open("wb") as log:
        async with running(
            folder, engine=FAKE_ENGINE, log=log.fileno(), SPECD_LOG_FORMAT="text"
        ) as daemon:
            yield Wire(daemon, folder / "log")


async def raw_answer(wire: Wire, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and all data after them, up to the end."""
    async with wire.connect() as (reader, writer):
        for n, part in enumerate(parts):
            if n:
                await in_progress(wire, 2)
            writer.write(part)
        answer = await reader.read()
    found = HEAD.fullmatch(answer)
    assert found, answer
    lines = found[2].decode().split("\r\n")
    return int(found[1]), dict(line.split(": ", 1) for line in lines), found[3]


async def metric(wire: Wire, name: str) -> float:
    async with wire.daemon.http.get("/metrics") as response:
        text = await response.text()
    found = re.search(rf"^specd:{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def in_progress(wire: Wire, n: int) -> None:
    """Wait for `n` requests besides the scrape: the other client's stream is one of them."""

    async def are_there() -> bool:
        return await metric(wire, "http_requests_in_flight") >= n + 1

    await wait_until(are_there, timeout_s=30)


async def line_of(wire: Wire, request_id: str) -> str:
    """Return the one line of a request; the log may be later than the answer."""
    await wait_until(lambda: bool(lines_of(wire, request_id)), timeout_s=30)
    [line] = lines_of(wire, request_id)
    return line


def lines_of(wire: Wire, request_id: str) -> list[str]:
    log = wire.log.read_text(encoding="utf-8")
    return [line for line in log.splitlines() if request_id in line]


@pytest.mark.parametrize(
    "raw, status, said",
    [
        (f"{MARK}\r\n\r\n".encode(), 400, b"400 Bad Request"),
        (post("/api/show", b"", f"Content-Length: {MARK}"), 400, b"400 Bad Request"),
        (post("/api/show", f"{MARK}\r\n".encode(), CHUNKED), 400, b"400 Bad Request"),
        (post("/api/show", b"0\r\n\r\n", CHUNKED, version="1.0"), 400, b"400 Bad Request"),
        (
            get("/", f"Cookie: {MARK * 12_000}"),
            431,
            b"431 Request Header Fields Too Large",
        ),
        (get("/", f"Expect: {MARK}"), 417, b"417 Expectation Failed"),
    ],
    ids=[
        "no method",
        "no length",
        "no chunk",
        "chunks in HTTP/1.0",
        "a header of 72 kB",
        "an expectation",
    ],
)
async def test_invalid_http_gets_gos_error_text_and_a_log_line_and_a_metric(
    wire: Wire, raw: bytes, status: int, said: bytes
) -> None:
    counted = f'http_requests_total{{dialect="",route="unmatched",status="{status}"}}'
    before = await metric(wire, counted)
    code, headers, body = await raw_answer(wire, raw)
    assert (code, body) == (status, said)
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Server"] == f"specd/{__version__}"
    assert await metric(wire, counted) == before + 1
    line = await line_of(wire, headers["X-Request-Id"])
    assert f"status={status} client=127.0.0.1 " in line
    assert MARK not in wire.log.read_text(encoding="utf-8")


async def test_an_invalid_chunk_fails_its_request_at_once(wire: Wire) -> None:
    head = post("/api/show", b"", CHUNKED)
    code, headers, body = await raw_answer(wire, head, f"{MARK}\r\n".encode())
    assert (code, body) == (400, b'{"error":"unexpected EOF"}')
    line = await line_of(wire, headers["X-Request-Id"])
    assert "route=/api/show status=400" in line
    assert MARK not in wire.log.read_text(encoding="utf-8")


async def test_a_blob_with_an_invalid_chunk_is_not_stored(wire: Wire) -> None:
    path = f"/api/blobs/sha256:{'0' * 64}"
    head = post(path, b"2\r\nab\r\n", CHUNKED)
    code, _, body = await raw_answer(wire, head, f"{MARK}\r\n".encode())
    assert (code, body) == (400, b'{"error":"unexpected EOF"}')
