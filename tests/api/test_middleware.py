"""The host and origin checks, and answers of unknown paths."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from specd.api.middleware import Origins, host_guard
from specd.settings import HostAddress, is_loopback
from tests.api.fakes import FakeSettings, client

OPEN = FakeSettings(host=HostAddress("http", "0.0.0.0", 11434))


@pytest.mark.contract("edge.origins", "edge.vary")
@pytest.mark.parametrize(
    "origin, status",
    [
        ("http://localhost", 200),
        ("https://127.0.0.1:3000", 200),
        ("http://0.0.0.0:1", 200),
        ("app://obsidian.md", 200),
        ("vscode-webview://x", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
    ],
)
async def test_only_known_origins_may_call(origin: str, status: int) -> None:
    async with client() as http, http.get("/", headers={"Origin": origin}) as reply:
        assert reply.status == status
        allowed = reply.headers.get("Access-Control-Allow-Origin")
        assert allowed == (origin if status == 200 else None)
        if status == 403:
            assert await reply.read() == b""
        else:
            assert reply.headers["Vary"] == "Origin"


@pytest.mark.contract("edge.same-origin")
async def test_the_same_origin_is_allowed() -> None:
    async with client() as http:
        origin = str(http.make_url("/")).rstrip("/")
        async with http.get("/", headers={"Origin": origin}) as reply:
            assert reply.status == 200
            assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.mark.contract("routes.specd-version", "edge.vary")
async def test_streams_have_the_headers_too() -> None:
    body = {"model": "plain", "prompt": "x"}
    headers = {"Origin": "http://localhost"}
    async with client() as http, http.post("/api/generate", json=body, headers=headers) as reply:
        assert reply.headers["Access-Control-Allow-Origin"] == "http://localhost"
        assert reply.headers["Server"].startswith("specd/")


@pytest.mark.contract("edge.preflight")
async def test_a_preflight_is_answered_for_any_path() -> None:
    headers = {"Origin": "http://localhost:5173", "Access-Control-Request-Method": "POST"}
    async with client() as http, http.options("/api/chat", headers=headers) as reply:
        assert reply.status == 204
        assert reply.headers["Access-Control-Max-Age"] == "43200"
        assert "DELETE" in reply.headers["Access-Control-Allow-Methods"]
        assert "X-Stainless-Runtime-Version" in reply.headers["Access-Control-Allow-Headers"]
        assert "X-Api-Key" in reply.headers["Access-Control-Allow-Headers"]
        assert "Anthropic-Version" in reply.headers["Access-Control-Allow-Headers"]
        assert reply.headers["Access-Control-Allow-Origin"] == "http://localhost:5173"


@pytest.mark.contract("edge.origins", "edge.wildcard")
async def test_a_star_allows_everyone() -> None:
    headers = {"Origin": "https://any.example"}
    settings = FakeSettings(origins=("*",))
    async with client(settings=settings) as http, http.get("/", headers=headers) as reply:
        assert reply.headers["Access-Control-Allow-Origin"] == "*"
        assert "Vary" not in reply.headers


@pytest.mark.contract("edge.wildcard")
def test_one_star_in_an_entry_is_any_text() -> None:
    origins = Origins(("https://*.example.org", "http://exact", ""))
    assert origins.allows("https://a.b.example.org")
    assert origins.allows("http://exact")
    assert not origins.allows("https://example.org")
    assert not origins.allows("http://exact:1")
    assert not origins.allows("")


@pytest.mark.contract("edge.host", "edge.any-host")
@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost:11434", 200),
        ("LOCALHOST", 200),
        ("box.local", 200),
        ("api.localhost", 200),
        ("host.docker.internal:11434", 200),
        ("127.0.0.53", 200),
        ("[::1]:11434", 200),
        ("192.168.1.20:11434", 200),
        ("0.0.0.0", 200),
        ("evil.example", 403),
        ("local.evil.example:11434", 403),
        ("8.8.8.8", 403),
        ("[2001:db8::1]", 403),
    ],
)
async def test_foreign_host_names_are_refused_on_loopback(host: str, status: int) -> None:
    async with client() as http, http.get("/", headers={"Host": host}) as reply:
        assert reply.status == status
    async with client(settings=OPEN) as http, http.get("/", headers={"Host": host}) as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    "line, hosts, status",
    [
        ("/", ["localhost", "evil.example"], (400, 403)),
        ("/", ["evil.example", "localhost"], (400, 403)),
        ("http://evil.example/", ["localhost"], (403,)),
        ("http://localhost/", ["evil.example"], (403,)),
        ("/", ["localhost"], (200,)),
    ],
)
async def test_every_host_that_is_named_must_be_our_own(
    line: str, hosts: list[str], status: tuple[int, ...]
) -> None:
    async with client() as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        named = "".join(f"Host: {host}\r\n" for host in hosts)
        writer.write(f"GET {line} HTTP/1.1\r\n{named}Connection: close\r\n\r\n".encode())
        said = await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert int(said.split()[1]) in status


@pytest.mark.parametrize("hosts", [["localhost", "evil.example"], ["evil.example", "localhost"]])
async def test_the_guard_itself_looks_at_every_host(hosts: list[str]) -> None:
    """The current HTTP parser already refuses two Host headers, so call the guard directly."""
    request = make_mocked_request("GET", "/", CIMultiDict(("Host", host) for host in hosts))
    answer = await host_guard()(request, served)
    assert answer.status == 403


async def served(request: web.Request) -> web.StreamResponse:
    return web.Response()


@pytest.mark.contract("edge.options")
async def test_options_with_an_own_name_is_204() -> None:
    async with client() as http, http.options("/", headers={"Host": "localhost"}) as reply:
        assert reply.status == 204


@pytest.mark.parametrize(
    "host, loopback",
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("", False), ("10.0.0.1", False)],
)
def test_loopback_is_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.contract("routes.not-found", "routes.wrong-method", "routes.head")
@pytest.mark.parametrize(
    "method, path, status, text",
    [
        ("GET", "/api/nothing", 404, "404 page not found"),
        ("GET", "/v1/messages/count_tokens", 405, "405 method not allowed"),
        ("GET", "/api/chat", 405, "405 method not allowed"),
        ("HEAD", "/api/ps", 405, ""),
        ("POST", "/api/tags", 405, "405 method not allowed"),
        ("DELETE", "/v1/models/x", 405, "405 method not allowed"),
        ("POST", "/api/tags/", 404, "404 page not found"),
        ("OPTIONS", "/api/tags", 405, "405 method not allowed"),
    ],
)
async def test_unknown_routes_are_answered_as_by_gin(
    method: str, path: str, status: int, text: str
) -> None:
    async with client(settings=OPEN) as http, http.request(method, path) as reply:
        assert (reply.status, await reply.text()) == (status, text)
        assert reply.headers["Content-Type"].startswith("text/plain")


@pytest.mark.contract("routes.trailing-slash")
@pytest.mark.parametrize(
    "method, path, status, location",
    [
        ("GET", "/api/tags/?a=b", 301, "/api/tags?a=b"),
        ("POST", "/api/chat/", 307, "/api/chat"),
        ("HEAD", "/api/version/", 307, "/api/version"),
    ],
)
async def test_a_trailing_slash_is_redirected(
    method: str, path: str, status: int, location: str
) -> None:
    async with client() as http, http.request(method, path, allow_redirects=False) as reply:
        assert (reply.status, reply.headers["Location"]) == (status, location)
