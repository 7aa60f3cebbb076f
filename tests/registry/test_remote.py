"""The token is sent only to the registry's own host, and never unencrypted."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.typedefs import Handler
from yarl import URL

from specd.errors import RegistryError
from specd.registry import remote as remotes
from specd.registry.remote import RedirectPolicy, Remote, check_redirect
from specd.registry.sessions import is_private_host, open_sessions
from specd.registry.transfer_context import TransferTimers
from specd.store import name as names
from tests.registry.tls import certified


@asynccontextmanager
async def served(handler: Handler, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Return the port."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.contract("pull.auth")
async def test_a_token_is_never_sent_unencrypted(tmp_path: Path) -> None:
    """The registry redirects to its own host without encryption."""
    heard: dict[str, list[str]] = {"https": [], "http": []}
    ports: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/token":
            return web.json_response({"token": "secret"})
        authorization = request.headers.get("Authorization", "")
        heard[request.scheme].append(authorization)
        if request.scheme == "http":
            return web.Response(text="here it is")
        if authorization != "Bearer secret":
            realm = f"https://{request.host}/token"
            challenge = f'Bearer realm="{realm}",service="fake",scope="s"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{ports[0]}/here")

    async def nobody() -> None:
        return None

    async with (
        served(answer, None) as plain,
        served(answer, certified(tmp_path)) as encrypted,
        aclosing(open_sessions(ssl=False)) as http,
    ):
        ports.append(plain)
        name = names.parse(f"127.0.0.1:{encrypted}/me/m:x")
        remote = Remote(http, name, insecure=False, identity=nobody, timers=TransferTimers())
        found = await remote.ask("GET", remote.url / "blobs" / "x")
    assert found.body == b"here it is"
    assert heard == {"https": ["", "Bearer secret"], "http": [""]}


@pytest.mark.parametrize(
    "source, target, said",
    [
        ("https://r.example/a", "https://cdn.example/b", ""),
        ("https://r.example/a", "https://r.example:8443/b", ""),
        ("http://r.example/a", "https://cdn.example/b", ""),
        ("http://r.example/a", "http://cdn.example/b", ""),
        ("http://192.168.1.5:5000/a", "http://192.168.1.6:9000/b", ""),
        ("https://registry.lan/a", "https://minio.lan/b", ""),
        ("http://registry/a", "http://127.0.0.1:9000/b", ""),
        ("https://registry.lan/a", "http://10.0.0.9:9000/b", ""),
        ("https://r.example/a", "http://r.example/a", "from https to http is"),
        ("https://r.example/a", "file:///etc/passwd", "from https to file is"),
        ("http://r.example/a", "ftp://r.example/a", "from http to ftp is"),
        ("http://r.example/a", "gopher://127.0.0.1:6379/_FLUSHALL", "to gopher"),
        ("https://r.example/a", "https://127.0.0.1/b", "not an address on the internet"),
        ("https://r.example/a", "https://[::1]/b", "not an address on the internet"),
        ("http://r.example/a", "http://0x7f.1:9000/b", "not an address on the internet"),
        ("http://r.example/a", "http://2130706433/b", "not an address on the internet"),
        ("http://r.example/a", "http://0300.0250.1.1/b", "not an address on the internet"),
        ("http://r.example/a", "http://192.168.1/b", "not an address on the internet"),
        ("http://r.example/a", "http://127.0.0.1./b", "not an address on the internet"),
        ("http://r.example/a", "http://100.101.102.103/b", "not an address on the internet"),
        ("http://r.example/a", "http://0x08.0x08.0x08.0x08/b", ""),
        ("https://r.example/a", "https://[::ffff:127.0.0.1]/b", "not an address on the internet"),
        ("http://r.example/a", "http://169.254.169.254/latest/meta-data", "not an address"),
        ("http://r.example/a", "http://10.0.0.1/", "not an address on the internet"),
        ("http://r.example/a", "http://[fe80::1]/", "not an address on the internet"),
        ("http://r.example/a", "http://[fd00::1]/", "not an address on the internet"),
        ("http://r.example/a", "http://0.0.0.0/", "not an address on the internet"),
        ("http://r.example/a", "http://localhost./", "not an address on the internet"),
        ("http://r.example/a", "http://router.LOCAL/reboot", "not an address on the internet"),
        (
            "http://r.example/a",
            "http://metadata.google.internal/",
            "not an address on the internet",
        ),
    ],
)
def test_allowed_and_refused_redirects(source: str, target: str, said: str) -> None:
    asked = URL(source)
    is_local = is_private_host(asked.host or "")
    if not said:
        check_redirect(asked, URL(target), is_local=is_local)
        return
    with pytest.raises(RegistryError, match=said):
        check_redirect(asked, URL(target), is_local=is_local)


class Everywhere(AbstractResolver):
    """Resolver that returns this machine's address for every name."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def sending(target: str) -> AsyncIterator[tuple[Remote, list[str]]]:
    """Run a registry `r.example` that redirects to `target`, at its own port; yield its hosts.

    r.example is this machine by its address.
    """
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.url.host or "")
        if asked[-1] == "r.example" and request.path != "/there":
            url = f"http://{target}:{request.url.port}/there"
            # Without a body, the connection returns to the pool before the answer is read.
            return web.Response(status=307, headers={"Location": url})
        return web.Response(text="here it is")

    async def nobody() -> None:
        return None

    async with served(answer, None) as port, aclosing(open_sessions(resolver=Everywhere())) as http:
        name = names.parse(f"r.example:{port}/me/m:x")
        yield Remote(http, name, insecure=True, identity=nobody, timers=TransferTimers()), asked


NEAR = ["192.168.1.9", "minio.lan", "100.101.102.103", "127.0.0.1", "0x7f.1"]


@pytest.fixture
def from_the_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make r.example answer from an internet address."""
    there = "r.example"
    monkeypatch.setattr(
        remotes, "is_from_private_peer", lambda response: response.url.host != there
    )


@pytest.mark.contract("pull.redirect")
@pytest.mark.parametrize("target", ["127.0.0.1", "minio.lan", "0x7f.1", "cdn.example"])
async def test_a_local_registry_with_a_public_name_may_redirect_to_local_hosts(target: str) -> None:
    async with sending(target) as (remote, asked):
        found = await remote.ask("GET", remote.url / "blobs" / "x")
    assert found.body == b"here it is"
    assert len(asked) == 2


@pytest.mark.contract("pull.redirect")
@pytest.mark.usefixtures("from_the_internet")
@pytest.mark.parametrize("target", [*NEAR, "router.example", "r.example"])
async def test_an_internet_registry_may_not_redirect_to_local_hosts(target: str) -> None:
    async with sending(target) as (remote, asked):
        with pytest.raises(RegistryError, match="not an address on the internet"):
            await remote.ask("GET", remote.url / "blobs" / "x")
    assert asked == ["r.example"]


@pytest.mark.usefixtures("from_the_internet")
@pytest.mark.parametrize("target", [*NEAR, "router.example"])
async def test_an_internet_registry_may_not_name_a_local_upload_url(target: str) -> None:
    """The URL of an upload comes in one answer and is requested separately."""
    async with sending("cdn.example") as (remote, asked):
        url = remote.url / "blobs" / "x"
        await remote.ask("GET", url, redirects=RedirectPolicy.SAME_HOST)
        with pytest.raises(RegistryError, match="not an address on the internet"):
            await remote.ask("GET", url.with_host(target))
    assert asked == ["r.example"]
