"""Connections that violate HTTP or stall: refused or closed, while other clients are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from tests.faults.conftest import Wire, get, parsed, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = b'{"model":"m","prompt":"a b","stream":false}'
ASK = post("/api/generate", BODY)
STREAM = post("/api/generate", b'{"model":"m","prompt":"a b"}')
HANG = post("/api/generate", b'{"model":"m","prompt":"hang"}')
CHUNKED = "Transfer-Encoding: chunked"
#: Requests of every dialect, to be cut and mutated.
VALID = (
    ASK,
    STREAM,
    post("/api/chat", b'{"model":"m","messages":[{"role":"user","content":"a"}]}'),
    post("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"a"}]}'),
    post(
        "/v1/messages", b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}]}'
    ),
    post("/api/generate", b"2b\r\n" + BODY + b"\r\n0\r\n\r\n", CHUNKED),
    post("/v1/completions", b'{"model":"m","prompt":"a","stream":true}'),
    post("/v1/responses", b'{"model":"m","input":[{"role":"user","content":"a"}],"stream":true}'),
    post("/v1/messages/count_tokens", b'{"model":"m","messages":[{"role":"user","content":"a"}]}'),
    post("/api/embed", b'{"model":"m","input":["a","b"]}'),
    post("/api/create", b'{"model":"n","from":"m","system":"s"}'),
    post(f"/api/blobs/sha256:{'0' * 64}", b"weights"),
    post("/api/show", b'{"model":"m"}'),
    get("/api/tags"),
    get("/v1/models/m"),
)


def first_line(line: bytes) -> bytes:
    return line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(post("/api/generate", b"zz\r\n" + BODY, CHUNKED), id="chunk size no number"),
        pytest.param(post("/api/generate", b"2b\r\n" + BODY + b"XX", CHUNKED), id="chunk too long"),
        pytest.param(post("/api/generate", b"f" * 17 + b"\r\n", CHUNKED), id="chunk of exabytes"),
        pytest.param(post("/api/generate", b"-1\r\n", CHUNKED), id="chunk below zero"),
        pytest.param(
            post("/api/generate", b"0\r\n\r\n", CHUNKED, "Content-Length: 5"), id="two lengths"
        ),
        pytest.param(
            post("/api/generate", BODY, "Content-Length: 43", "Content-Length: 3"), id="lengths"
        ),
        pytest.param(post("/api/generate", b"", "Content-Length: -5"), id="a length below zero"),
        pytest.param(post("/api/generate", b"", "Content-Length: abc"), id="a length in words"),
        pytest.param(post("/api/generate", b"", f"Content-Length: {10**30}"), id="a length beyond"),
        pytest.param(first_line(b"GET / HTTP/3.0"), id="HTTP/3"),
        pytest.param(first_line(b"GET / HTTP/x.y"), id="HTTP/x"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"\x16\x03\x01\x00\x80\x01\x00\x00\x7c\x03\x03" + b"\0" * 120, id="TLS"),
        pytest.param(b"\0\1\2\3\r\n\r\n", id="no HTTP"),
        pytest.param("GÉT / HTTP/1.1\r\n\r\n".encode(), id="no method"),
        pytest.param(b"GET / HTTP/1.1\nHost: localhost\n\n", id="bare line feeds"),
        pytest.param(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", id="no host"),
        pytest.param(first_line(b"GET api/version HTTP/1.1"), id="no slash"),
        pytest.param(first_line("GET /é HTTP/1.1".encode()), id="path in UTF-8"),
        pytest.param(get("/", "X: a\0b"), id="a zero in a header"),
        pytest.param(get("/", "X : a"), id="a space before a colon"),
        pytest.param(get("/", "X: a\r\n b"), id="a folded header"),
        pytest.param(get("/" + "x" * 2**17), id="a long path"),
        pytest.param(get("/", f"Cookie: {'x' * 2**21}"), id="a long header"),
        pytest.param(get("/", *(f"X-{n}: y" for n in range(1000))), id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300_000, id="headers without end"),
    ],
)
async def test_invalid_http_is_refused(wire: Wire, raw: bytes) -> None:
    reply = await wire.send(raw)
    assert reply is None or reply.status in {400, 431}


LINE = b"X: " + b"y" * 60_000 + b"\r\n"


async def test_the_request_head_has_a_total_size_limit(wire: Wire) -> None:
    reply = await wire.send(b"GET / HTTP/1.1\r\n" + LINE * 30 + b"\r\n")
    assert reply is not None
    assert reply.status == 431


async def test_unfinished_request_heads_share_a_memory_limit(wire: Wire) -> None:
    async with contextlib.AsyncExitStack() as held:
        told = set()
        for _ in range(60):
            reader, writer = await held.enter_async_context(wire.connect())
            writer.write(b"GET / HTTP/1.1\r\n" + LINE * 15)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            told.add(asyncio.create_task(reader.readline()))
        refused: list[bytes] = []
        async with asyncio.timeout(60):
            while len(refused) < 10:
                done, told = await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
                refused += [task.result() for task in done]
        assert {line.split()[1] for line in refused} == {b"431"}
        answered = await wire.send(get("/", f"Cookie: {'x' * 60_000}"))
        assert answered is not None
        assert answered.status == 200
        for task in told:
            task.cancel()
        await asyncio.gather(*told, return_exceptions=True)


@pytest.mark.parametrize(
    "raw, status",
    [
        pytest.param(first_line(b"CONNECT x:1 HTTP/1.1"), 403, id="CONNECT"),
        pytest.param(first_line(b"TRACE / HTTP/1.1"), 405, id="TRACE"),
        pytest.param(first_line(b"OPTIONS * HTTP/1.1"), 204, id="OPTIONS *"),
        pytest.param(first_line(b"GET http://evil.example/api/version HTTP/1.1"), 403, id="URL"),
        pytest.param(get("/v1/../api/version"), 404, id="dots"),
        pytest.param(get("//evil.example/api/tags/"), 404, id="two slashes"),
        pytest.param(get("/v1/models/%zz%00%ff"), 400, id="bad escapes"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n", 403, id="host"),
        pytest.param(get("/", "Origin: \xff"), 403, id="origin"),
        pytest.param(get("/", f"Cookie: {'x' * 60_000}"), 200, id="the cookies of a whole machine"),
        pytest.param(
            get("/", "Cookie: ;;;=\xff", "Accept: \xff", "Range: x"), 200, id="odd headers"
        ),
        pytest.param(post("/api/generate", BODY, "Expect: nonsense"), 417, id="expectation"),
        pytest.param(
            get("/", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="),
            200,
            id="websocket",
        ),
    ],
)
async def test_unusual_requests_get_the_expected_status(
    wire: Wire, raw: bytes, status: int
) -> None:
    reply = await wire.send(raw)
    assert reply is not None
    assert reply.status == status


@pytest.mark.parametrize(
    "body, lines", [(BODY, 1), (b'{"model":"m","prompt":"a b"}', 3)], ids=["whole", "streamed"]
)
async def test_an_http10_request_is_answered_and_its_connection_closed(
    wire: Wire, body: bytes, lines: int
) -> None:
    raw = b"POST /api/generate HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reply = await wire.send(raw)
    assert reply is not None
    said = [json.loads(line) for line in reply.body.splitlines()]
    assert len(said) == lines
    assert "".join(line["response"] for line in said) == "a b "


async def test_a_100_continue_is_sent_before_the_body_arrives(wire: Wire) -> None:
    head, body = post("/api/generate", BODY, "Expect: 100-continue").split(b"\r\n\r\n")
    async with wire.connect() as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        reply = parsed(await reader.read())
    assert reply is not None
    assert reply.json["response"] == "a b "


@pytest.mark.parametrize("raw", VALID)
async def test_a_request_may_arrive_byte_by_byte(wire: Wire, raw: bytes) -> None:
    whole = await wire.send(raw)
    async with wire.connect() as (reader, writer):
        for byte in raw:
            writer.write(bytes([byte]))
            await writer.drain()
        reply = parsed(await reader.read())
    assert reply is not None
    assert whole is not None
    assert (reply.status, reply.type) == (whole.status, whole.type)


async def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    asked = [
        post(
            "/api/generate", json.dumps({"model": "m", "prompt": f"w{n}", "stream": False}).encode()
        )
        for n in range(100)
    ]
    open_ends = [raw.replace(b"Connection: close\r\n", b"") for raw in asked[:-1]]
    async with wire.connect() as (reader, writer):
        writer.write(b"".join([*open_ends, asked[-1]]))
        answer = (await reader.read()).decode()
    bodies = [part.partition("\r\n\r\n")[2] for part in answer.split("HTTP/1.1 200 OK")[1:]]
    assert [json.loads(body)["response"] for body in bodies] == [f"w{n} " for n in range(100)]


@pytest.mark.parametrize("raw", VALID)
@pytest.mark.parametrize("hard", [True, False], ids=["reset", "closed"])
async def test_a_connection_may_close_at_any_byte_of_a_request(
    wire: Wire, raw: bytes, hard: bool
) -> None:
    for end in range(1, len(raw), 7):
        async with wire.connect() as (_, writer):
            writer.write(raw[:end])
            await writer.drain()
            if not hard:
                writer.close()


@pytest.mark.parametrize("raw", [HANG, STREAM], ids=["endless answer", "short answer"])
async def test_a_client_may_disconnect_during_its_answer(wire: Wire, raw: bytes) -> None:
    for n_bytes in range(0, 260, 20):
        async with wire.connect() as (reader, writer):
            writer.write(raw)
            await reader.readexactly(n_bytes)


@pytest.mark.parametrize("raw", VALID)
async def test_a_half_closed_connection_is_answered_or_closed(wire: Wire, raw: bytes) -> None:
    for end in (len(raw), len(raw) - 3, len(raw) // 2, 10):
        reply = await wire.send(raw[:end], eof=True)
        assert reply is None or reply.status in {200, 400, 501}


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
async def test_a_half_closed_connection_gets_a_short_answer(wire: Wire, path: str) -> None:
    reply = await wire.send(get(path), eof=True)
    assert reply is not None
    assert reply.status == 200


async def test_a_half_closed_connection_is_closed_during_a_long_answer(wire: Wire) -> None:
    async with asyncio.timeout(30), wire.connect() as (reader, writer):
        writer.write(HANG)
        writer.write_eof()
        while await reader.read(2**16):
            pass


async def test_a_client_that_does_not_read_delays_no_other_client(wire: Wire) -> None:
    async with contextlib.AsyncExitStack() as deaf:
        reader, writer = await deaf.enter_async_context(wire.connect())
        writer.write(post("/api/generate", b'{"model":"m","prompt":"flood"}'))
        await reader.readline()
        for _ in range(5):
            reply = await wire.send(ASK)
            assert reply is not None
            assert reply.json["response"] == "a b "


async def test_many_silent_connections_block_no_other_client(wire: Wire) -> None:
    unfinished = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    async with contextlib.AsyncExitStack() as silent:
        for n in range(300):
            _, writer = await silent.enter_async_context(wire.connect())
            writer.write(unfinished if n % 2 else b"")
        reply = await wire.send(ASK)
    assert reply is not None
    assert reply.status == 200


@pytest.mark.parametrize("seed", range(8))
async def test_mutated_requests_are_answered_or_refused(wire: Wire, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        raw = bytearray(draw.choice(VALID))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(raw))
            match draw.randrange(4):
                case 0:
                    raw[at] = draw.randrange(256)
                case 1:
                    del raw[at : at + draw.randint(1, 8)]
                case 2:
                    raw[at:at] = draw.randbytes(draw.randint(1, 8))
                case 3:
                    raw[at:at] = raw[at : at + 30]
        # End the input, so that a request that waits for more gets an end of file.
        with contextlib.suppress(ValueError):  # two answers, or one of HTTP/0.9
            reply = await wire.send(bytes(raw), eof=True)
            assert reply is None or reply.status < 500 or reply.status == 501, reply
