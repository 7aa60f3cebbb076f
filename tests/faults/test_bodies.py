"""Malformed, compressed and huge bodies: each gets an error of its API, within a memory limit."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
import zlib
from typing import Any

import pytest

from specd.api.body import MAX_DECOMPRESSED_BYTES
from tests.faults.conftest import Reply, Wire, get, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd: Any = importlib.import_module(_MODULE)

MIB = 2**20
PATHS = (
    *(f"/api/{name}" for name in ("generate", "chat", "show", "embed", "pull", "create", "copy")),
    *(f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "embeddings")),
    "/v1/messages",
)
ASKED = {"model": "m", "prompt": "a b", "stream": False}
BODY = json.dumps(ASKED).encode()
DEEP = 100_000


def complaint(path: str, reply: Reply | None) -> str:
    """Return the error message, read in the format of the path's dialect."""
    assert reply is not None
    assert reply.type == "application/json; charset=utf-8"
    error = reply.json["error"]
    if path.startswith("/api/"):
        return str(error)
    if path == "/v1/messages":
        assert reply.json["type"] == "error"
    return str(error["message"])


NO_JSON: tuple[tuple[bytes, str], ...] = (
    (b"[" * DEEP, "exceeded max depth"),
    (b"[" * DEEP + b"]" * DEEP, "exceeded max depth"),
    (b'{"tools":' * DEEP, "exceeded max depth"),
    (
        b'{"x":' + b"[" * 900 + b'"\\u0041"' + b"]" * 900 + b"}",
        "exceeded max depth",
    ),
    (b"[" * 450 + b"?", "exceeded max depth"),
    (BODY.decode().encode("utf-16"), "invalid character 'ÿ' looking"),
    (
        BODY.decode().encode("utf-16-le"),
        r"invalid character '\x00' looking for beginning of object key string",
    ),
    (b"\xef\xbb\xbf" + BODY, "invalid character 'ï' looking"),
    (BODY[:-1], "unexpected EOF"),
    (b"{'model': 'm'}", r"invalid character '\'' looking"),
    (b'{"model":"m",}', "invalid character '}' looking"),
    (b'{"x":NaN}', "invalid character 'N' looking"),
    (b'{"x":1e999}', "json: cannot unmarshal number 1e999"),
    (b'{"model":"\n"}', "in string literal"),
    (b"\0" * 100, r"invalid character '\x00' looking"),
    (b"--x\r\n", "invalid character '-' in numeric literal"),
    (b"model=m&prompt=x", "invalid character 'm' looking"),
    (b'["m"]', "json: cannot unmarshal array into Go value"),
)


@pytest.mark.parametrize("path", PATHS)
async def test_invalid_json_gets_gos_error_text(wire: Wire, path: str) -> None:
    for body, sentence in NO_JSON:
        reply = await wire.send(post(path, body))
        assert reply is not None
        assert reply.status == 400
        assert sentence in complaint(path, reply)


@pytest.mark.parametrize(
    "path, body",
    [
        (
            "/v1/chat/completions",
            {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "[" * DEEP}}]}]},
        ),
        ("/v1/responses", {"input": [{"type": "function_call", "arguments": "[" * DEEP}]}),
    ],
    ids=["chat completions", "responses"],
)
async def test_json_inside_json_has_a_depth_limit(
    wire: Wire, path: str, body: dict[str, object]
) -> None:
    reply = await wire.send(post(path, json.dumps({"model": "m"} | body).encode()))
    assert reply is not None
    assert reply.status == 400
    assert "arguments" in complaint(path, reply)


@pytest.mark.parametrize(
    "kind",
    ["text/plain; charset=utf-99", "multipart/form-data", "\xff"],
    ids=["unknown charset", "multipart", "no text"],
)
async def test_the_content_type_is_ignored(wire: Wire, kind: str) -> None:
    reply = await wire.send(post("/api/generate", BODY, f"Content-Type: {kind}"))
    assert reply is not None
    assert reply.json["response"] == "a b "


async def test_invalid_utf8_is_replaced_as_in_go(wire: Wire) -> None:
    body = b'{"model":"m","stream":false,"prompt":"a\xff\xc3 \xed\xa0\x80 \\ud800"}'
    reply = await wire.send(post("/api/generate", body))
    assert reply is not None
    assert (reply.status, set(reply.json["response"])) == (200, set("a\ufffd "))


# --------------------------------------------------------------------------- folded bodies

FOLDED = gzip.compress(BODY, mtime=0)
BROKEN = {
    "gzip": [b"x" * 400, FOLDED[:30], b"\x1f\x8b", FOLDED[::-1]],
    "deflate": [b"x" * 400, zlib.compress(BODY)[:12]],
    "zstd": [b"x" * 400, zstd.compress(BODY)[:12], b"\x28\xb5\x2f\xfd"],
}


@pytest.mark.parametrize("path", ["/api/generate", "/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "encoding, body",
    [(encoding, body) for encoding, bodies in BROKEN.items() for body in bodies],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
async def test_a_body_that_does_not_decompress_is_refused(
    wire: Wire, path: str, encoding: str, body: bytes
) -> None:
    reply = await wire.send(post(path, body, f"Content-Encoding: {encoding}"))
    assert reply is not None
    assert reply.status == 400
    assert complaint(path, reply) == "unexpected EOF"


@pytest.mark.parametrize(
    "raw, status",
    [
        (post("/nowhere", b"x" * 99, "Content-Encoding: gzip"), 404),
        (post("/api/tags", b"x" * 99, "Content-Encoding: gzip"), 405),
        (post("/api/chat", b"x", "Content-Encoding: gzip", "Origin: http://evil"), 403),
        (get("/api/version", "Content-Encoding: gzip", "Content-Length: 3") + b"xxx", 200),
        (post("/api/generate", b"x", "Content-Encoding: br"), 400),
        (post("/api/generate", BODY, "Content-Encoding: identity"), 200),
        (post("/api/generate", BODY, "Content-Encoding: unheard-of"), 200),
        (post("/api/generate", b"", "Content-Encoding: gzip"), 400),
        (post("/api/generate", gzip.compress(BODY), "Content-Encoding: gzip"), 200),
    ],
    ids=[
        "no route",
        "wrong method",
        "refused origin",
        "body of a GET",
        "brotli",
        "identity",
        "unknown encoding",
        "empty gzip",
        "gzip",
    ],
)
async def test_a_compressed_body_is_decompressed_only_where_the_body_is_read(
    wire: Wire, raw: bytes, status: int
) -> None:
    reply = await wire.send(raw)
    assert reply is not None
    assert reply.status == status


def bomb(encoding: str) -> bytes:
    """Return a compressed body, a thousandth of its size after decompression."""
    block = b" " * MIB
    if encoding == "zstd":
        return bytes(zstd.compress(block * (MAX_DECOMPRESSED_BYTES // MIB + 1)))
    folding = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    return b"".join(folding.compress(block) for _ in range(128)) + folding.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_a_decompression_bomb_is_refused_within_a_memory_limit(
    wire: Wire, encoding: str
) -> None:
    before = wire.peak_bytes()
    reply = await wire.send(post("/api/chat", bomb(encoding), f"Content-Encoding: {encoding}"))
    assert reply is not None
    assert (reply.status, reply.json["error"]) == (413, "request body too large")
    assert wire.peak_bytes() - before < 200 * MIB


# --------------------------------------------------------------------------- huge bodies


def asking(rest: bytes) -> bytes:
    return BODY[:-1] + b"," + rest + b"}"


@pytest.mark.parametrize(
    "body, status, sentence",
    [
        pytest.param(asking(b'"x":"' + b"x" * 64 * MIB + b'"'), 200, "", id="a field unread"),
        pytest.param(BODY + b"x" * 64 * MIB, 200, "", id="after the value"),
        pytest.param(b" " * 64 * MIB + BODY, 200, "", id="space before it"),
        pytest.param(b"[" + b"[]," * 21 * MIB, 400, "more than 2097152 JSON values", id="lists"),
        pytest.param(
            asking(b'"x":' + b"9" * 64 * MIB), 400, "cannot unmarshal number", id="digits"
        ),
        pytest.param(
            asking(b'"x":"' + b"x" * 64 * MIB + b'\n"'), 400, "in string literal", id="broken"
        ),
        pytest.param(
            b'{"model":"m","prompt":"' + b"x" * 64 * MIB + b'"}',
            400,
            "prompt too large",
            id="the prompt",
        ),
    ],
)
async def test_a_huge_body_is_answered_within_a_memory_limit(
    wire: Wire, body: bytes, status: int, sentence: str
) -> None:
    reply = await wire.send(post("/api/generate", body))
    assert reply is not None
    assert reply.status == status
    assert reply.json["response"] == "a b " if status == 200 else sentence in reply.json["error"]
    assert wire.peak_bytes() < 1024 * MIB
