"""Who is sent the token: the registry's own host, encrypted as it was, and nobody else."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from specd.errors import RegistryError
from specd.registry.remote import Remote, check_redirect
from specd.registry.waits import Waits
from specd.store import name as names
from tests.registry.tls import certified


@asynccontextmanager
async def served(handler: Handler, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """The port."""
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
async def test_a_token_never_leaves_in_clear(tmp_path: Path) -> None:
    """The registry itself points to its own host without encryption."""
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
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http,
    ):
        ports.append(plain)
        name = names.parse(f"127.0.0.1:{encrypted}/me/m:x")
        remote = Remote(http, name, insecure=False, identity=nobody, waits=Waits())
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
        ("https://r.example/a", "https://127.0.0.1/b", "no address of the internet"),
        ("https://r.example/a", "https://[::1]/b", "no address of the internet"),
        ("https://r.example/a", "https://[::ffff:127.0.0.1]/b", "no address of the internet"),
        ("http://r.example/a", "http://169.254.169.254/latest/meta-data", "no address of"),
        ("http://r.example/a", "http://10.0.0.1/", "no address of the internet"),
        ("http://r.example/a", "http://[fe80::1]/", "no address of the internet"),
        ("http://r.example/a", "http://[fd00::1]/", "no address of the internet"),
        ("http://r.example/a", "http://0.0.0.0/", "no address of the internet"),
        ("http://r.example/a", "http://localhost./", "no address of the internet"),
        ("http://r.example/a", "http://router.LOCAL/reboot", "no address of the internet"),
        ("http://r.example/a", "http://metadata.google.internal/", "no address of the internet"),
    ],
)
def test_where_a_registry_may_send_us(source: str, target: str, said: str) -> None:
    if not said:
        check_redirect(URL(source), URL(target))
        return
    with pytest.raises(RegistryError, match=said):
        check_redirect(URL(source), URL(target))
