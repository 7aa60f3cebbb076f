"""The listening sockets: the daemon's own, or those of systemd."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from specd import metrics
from specd.api.request_recorder import EARLY_ERRORS, EarlyErrors
from specd.daemon.http_server import HttpServer
from specd.daemon.sockets import apply_systemd_sockets, bind, url_of
from specd.errors import BadSetting
from specd.settings import HostAddress, Settings


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        sock.listen()
        yield sock


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    app[EARLY_ERRORS] = EarlyErrors(metrics.Metrics())
    server = HttpServer(app, limit=16, timeout_s=60.0, shutdown_timeout_s=1.0)
    yield server
    await server.close()


async def said(url: str, connector: aiohttp.BaseConnector | None = None) -> str:
    async with aiohttp.ClientSession(connector=connector) as http, http.get(url) as response:
        return await response.text()


def at(host: str, port: int) -> HostAddress:
    return HostAddress("http", host, port)


async def test_the_address_of_the_settings_is_bound(server: HttpServer) -> None:
    await server.start(await bind(at("127.0.0.1", 0)))
    [url] = map(url_of, server.addresses)
    assert await said(url) == "hello"


async def test_the_error_for_a_used_port_names_it() -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        with pytest.raises(BadSetting, match=rf"127.0.0.1:{port} \(OLLAMA_HOST\): Address already"):
            await bind(at("127.0.0.1", port))


async def test_all_passed_sockets_are_served_and_none_is_bound(
    server: HttpServer, tmp_path: Path
) -> None:
    with listening() as first, listening("::1") as second, socket.socket(socket.AF_UNIX) as third:
        third.bind(str(tmp_path / "specd.sock"))
        third.listen()
        port, port6 = first.getsockname()[1], second.getsockname()[1]
        await server.start([first.dup(), second.dup(), third.dup()])
        assert sorted(map(url_of, server.addresses)) == sorted(
            [f"http://127.0.0.1:{port}", f"http://[::1]:{port6}", f"unix:{tmp_path}/specd.sock"]
        )
        assert await said(f"http://127.0.0.1:{port}") == "hello"
        assert await said(f"http://[::1]:{port6}") == "hello"
        by_path = aiohttp.UnixConnector(str(tmp_path / "specd.sock"))
        assert await said("http://localhost/", by_path) == "hello"
        server.stop_listening()
        # systemd keeps them open, so the next daemon serves new connections.
        with socket.create_connection(first.getsockname()):
            pass
        assert (tmp_path / "specd.sock").is_socket()


def test_without_passed_sockets_the_settings_stay() -> None:
    settings = Settings(host=at("0.0.0.0", 80))
    assert apply_systemd_sockets(settings, []) is settings


def test_the_host_is_that_of_the_passed_socket() -> None:
    """The host checks depend on it: a daemon that is open to others accepts more names."""
    with listening() as near, listening("0.0.0.0") as far:
        for passed in ([far], [near, far]):
            host = apply_systemd_sockets(Settings(), passed).host
            assert (host.host, host.port) == far.getsockname()
        assert apply_systemd_sockets(Settings(), [near]).host.host == "127.0.0.1"


@pytest.mark.parametrize("is_said", [True, False])
def test_a_host_without_effect_is_logged(
    is_said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        if is_said:
            monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:80")
        apply_systemd_sockets(Settings(), [sock])
        assert ("OLLAMA_HOST=0.0.0.0:80 has no effect" in caplog.text) is is_said
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{port}")
        caplog.clear()
        apply_systemd_sockets(Settings(), [sock])
        assert caplog.text == ""


def test_a_socket_that_does_not_listen_is_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as silent:
        for sock in (datagrams, silent):
            with pytest.raises(BadSetting, match="not a listening stream"):
                apply_systemd_sockets(Settings(), [sock])


def test_a_single_unix_socket_does_not_change_the_host(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "specd.sock"))
        sock.listen()
        assert apply_systemd_sockets(Settings(), [sock]).host == Settings().host


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
async def test_all_addresses_means_both_families(server: HttpServer, host: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listening() as sock:
        port = sock.getsockname()[1]
    await server.start(await bind(at(host, port)))
    for here in ("127.0.0.1", "[::1]"):
        assert await said(f"http://{here}:{port}") == "hello"


async def test_one_address_is_bound_alone(server: HttpServer) -> None:
    await server.start(await bind(at("127.0.0.1", 0)))
    [url] = map(url_of, server.addresses)
    with pytest.raises(aiohttp.ClientConnectionError):
        await said(url.replace("127.0.0.1", "127.0.0.2"))
