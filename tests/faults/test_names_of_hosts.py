"""Forged Host and Origin headers, as a web page or a proxy could send them."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")


def asking(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join((line, *headers, b"Connection: close", b"", b""))


TAGS = b"GET /api/tags HTTP/1.1"


@pytest.mark.parametrize(
    "host",
    [
        b"LocalHost",
        b"localhost:",
        b"127.0.0.1",
        b"127.255.255.254:80",
        b"[::1]",
        b"[::1]:1",
        b"[0:0:0:0:0:0:0:1]",
        b"[::]",
        b"[::ffff:127.0.0.1]:11434",
        b"[::ffff:10.1.2.3]",
        b"[fd12:3456::1]",
        b"172.31.0.1",
        b"specd.internal",
        b"a.b.LOCAL:11434",
        b"x.localhost",
        b"",
    ],
)
async def test_local_host_names_are_accepted(wire: Wire, host: bytes) -> None:
    reply = await wire.send(asking(TAGS, b"Host: " + host))
    assert reply is not None
    assert reply.status == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:11434",
        b"localhost.evil.example",
        b"localhost.",
        b"box.local.",
        b"127.0.0.1.evil.example",
        b"127.0.0.1.",
        b"127.1",
        b"2130706433",
        b"0x7f.0.0.1",
        b"0177.0.0.1",
        b"8.8.8.8",
        b"172.32.0.1",
        b"169.254.169.254",
        b"100.64.0.1",
        b"[2001:db8::1]",
        b"[::ffff:8.8.8.8]",
        b"[fe80::1%25eth0]",
        b"[::1",
        b"::1]",
        b"[::1]evil.example",
        b"[localhost]evil",
        b"localhost@evil.example",
        b"localhost:11434@evil.example",
        b"localhost:80:80",
        b"localhost/evil.example",
        b"localhost evil.example",
        b"evil.example#localhost",
        b"evil.example?.local.x",
        b"evil.examplelocalhost",
        b"xn--lcalhost-66a",
        "ｌocalhost".encode(),
        b"localhost\xff",
        b"local",
        b"." * 5000,
        b"*",
    ],
)
async def test_foreign_host_names_are_refused(wire: Wire, host: bytes) -> None:
    for line in (TAGS, b"POST /api/generate HTTP/1.1", b"OPTIONS / HTTP/1.1", b"GET / HTTP/1.1"):
        reply = await wire.send(asking(line, b"Host: " + host))
        assert reply is not None
        assert reply.status in {400, 403}, line
        assert reply.status == 400 or reply.body == b""


@pytest.mark.parametrize(
    "hosts",
    [(b"localhost", b"evil.example"), (b"evil.example", b"localhost"), (b"localhost", b"")],
    ids=["foreign second", "foreign first", "empty second"],
)
async def test_two_host_headers_give_no_access_to_a_foreign_page(
    wire: Wire, hosts: tuple[bytes, bytes]
) -> None:
    reply = await wire.send(asking(TAGS, *(b"Host: " + host for host in hosts)))
    assert reply is not None
    assert reply.status in {400, 403} or hosts[1] == b""


@pytest.mark.parametrize(
    "target, status",
    [
        (b"http://localhost/api/tags", 200),
        (b"http://127.0.0.1:9/api/tags", 200),
        (b"http://evil.example/api/tags", 403),
        (b"http://evil.example:11434/api/tags", 403),
        (b"http://localhost@evil.example/api/tags", 403),
        (b"https://evil.example/api/tags", 403),
        (b"//evil.example/api/tags", 404),
    ],
)
async def test_the_host_of_an_absolute_url_overrides_the_host_header(
    wire: Wire, target: bytes, status: int
) -> None:
    reply = await wire.send(asking(b"GET " + target + b" HTTP/1.1", b"Host: localhost"))
    assert reply is not None
    assert reply.status == status


EVIL = b"Origin: http://evil.example"


@pytest.mark.parametrize(
    "headers",
    [
        (EVIL,),
        (b"ORIGIN: http://evil.example",),
        (EVIL, b"Origin: http://localhost"),
        (b"Origin: http://localhost", EVIL),
        (b"Origin: http://localhost, http://evil.example",),
        (b"Origin: null",),
        (b"Origin: http://localhost.evil.example",),
        (b"Origin: http://localhost@evil.example",),
        (b"Origin: http://127.0.0.1.evil.example",),
        (b"Origin: http://[::1]",),
        (b"Origin: HTTP://LOCALHOST.EVIL.EXAMPLE",),
        (b"Origin: ftp://localhost",),
        (b"Origin: xapp://localhost",),
        (b"Origin: http://localhost\xff",),
        (b"Origin: https:localhost",),
        (b"Origin: *",),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS"])
async def test_a_foreign_origin_is_refused_for_every_method(
    wire: Wire, headers: tuple[bytes, ...], method: bytes
) -> None:
    reply = await wire.send(asking(method + b" /api/tags HTTP/1.1", b"Host: localhost", *headers))
    assert reply is not None
    assert reply.status in {400, 403}
    assert b"models" not in reply.body


async def test_a_foreign_origin_equal_to_the_host_is_refused(wire: Wire) -> None:
    """DNS rebinding: evil.example resolves to this machine."""
    reply = await wire.send(asking(TAGS, b"Host: evil.example", EVIL))
    assert reply is not None
    assert reply.status == 403
    whole = b"GET http://evil.example/api/tags HTTP/1.1"
    reply = await wire.send(asking(whole, b"Host: localhost", EVIL))
    assert reply is not None
    assert reply.status == 403


async def test_an_http10_request_without_a_host_is_answered(wire: Wire) -> None:
    reply = await wire.send(b"GET /api/tags HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n")
    assert reply is not None
    assert reply.status == 200
