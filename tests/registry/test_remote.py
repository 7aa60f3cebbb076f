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

from specd.registry.remote import Remote
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
