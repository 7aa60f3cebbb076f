"""Checks before any route (CORS, Host), and Gin's answers if no route matches.

Rules are Ollama's: gin-contrib/cors 1.7.2, the guard against DNS rebinding, gin's redirects.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import psutil
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

import specd

_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 - origins, not bound
_LOCAL_ORIGINS: Final = (
    *(
        f"{scheme}://{host}{port}"
        for host in _LOCAL_HOSTS
        for scheme in ("http", "https")
        for port in ("", ":*")
    ),
    "app://*",
    "file://*",
    "tauri://*",
    "vscode-webview://*",
    "vscode-file://*",
)
_STAINLESS: Final = (
    "Arch", "Async", "Custom-Poll-Interval", "Helper-Method", "Lang", "Os", "Package-Version",
    "Poll-Helper", "Retry-Count", "Runtime", "Runtime-Version", "Timeout",
)  # fmt: skip
# Not in Ollama: web pages need them for `/v1/messages`.
_ANTHROPIC: Final = (
    "X-Api-Key", "Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access",
)  # fmt: skip
_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS",
    "Access-Control-Allow-Headers": ",".join(
        (
            "Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With",
            "Openai-Beta", *(f"X-Stainless-{name}" for name in _STAINLESS), *_ANTHROPIC,
        )
    ),
    "Access-Control-Max-Age": "43200",
}  # fmt: skip


# --------------------------------------------------------------------------- CORS


class Origins:
    """The web origins that may call; an entry may contain one `*`, which stands for any text."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.replace(allowed)

    def replace(self, allowed: tuple[str, ...]) -> None:
        asked = [entry.strip() for entry in allowed]
        self._all = "*" in asked
        entries = [entry for entry in (*asked, *_LOCAL_ORIGINS) if entry]
        self._patterns = [
            re.compile(".*".join(map(re.escape, entry.split("*", 1))), re.DOTALL)
            # Browsers send schemes and hosts in lower case.
            for entry in (entry if "*" in entry else entry.lower() for entry in entries)
        ]

    def allows(self, origin: str) -> bool:
        return self._all or any(pattern.fullmatch(origin) for pattern in self._patterns)

    def headers(self, origin: str) -> dict[str, str]:
        if self._all:
            return {"Access-Control-Allow-Origin": "*"}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def cors(origins: Origins) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = _cross_origin(request)
        if origin and not origins.allows(origin):
            return web.Response(status=403)
        if origin and request.method == hdrs.METH_OPTIONS:
            return web.Response(status=204, headers=_PREFLIGHT)
        return await handler(request)

    return check


def response_headers(
    origins: Origins,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a handler of `on_response_prepare` that adds Server and CORS headers.

    A middleware would be too late: a stream sends its headers before its handler returns.
    """

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[hdrs.SERVER] = f"specd/{specd.__version__}"
        origin = _cross_origin(request)
        if origin and origins.allows(origin):
            response.headers.update(origins.headers(origin))

    return add


def _cross_origin(request: web.BaseRequest) -> str:
    """Return the foreign origins of a request; "" for the same origin or without a browser.

    Browsers send one origin.  If a client sends several, all foreign ones are returned.
    """
    sent = [origin for origin in request.headers.getall(hdrs.ORIGIN, ()) if origin]
    if not sent:
        return ""
    own = {f"{scheme}://{host}" for scheme in ("http", "https") for host in _hosts(request)[:1]}
    return ", ".join(origin for origin in sent if origin not in own)


# --------------------------------------------------------------------------- Host


def host_guard() -> Middleware:
    """Return a middleware that refuses foreign host names, against DNS rebinding."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = [_without_port(host) for host in _hosts(request)]
        if not all(map(_is_own, hosts)):
            return web.Response(status=403)
        if request.method == hdrs.METH_OPTIONS and not any(map(_address, hosts)):
            return web.Response(status=204)
        return await handler(request)

    return check


def _hosts(request: web.BaseRequest) -> list[str]:
    """Return the hosts that the request names: one, or "" if none; only forgeries have several.

    The host of a whole URL in the request line comes first and counts.
    """
    sent = request.headers.getall(hdrs.HOST, [])
    # Without a Host header, `request.host` queries the DNS, which blocks the event loop.
    whole = [] if request.raw_path.startswith(("/", "*")) else [request.host]
    return [*whole, *sent] or [""]


def _is_own(host: str) -> bool:
    address = _address(host)
    return _is_own_name(host) if address is None else _is_local_address(address)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_local_address(address: _Address) -> bool:
    if address.is_loopback or address.is_unspecified or _is_private(address):
        return True
    return any(
        entry.address.partition("%")[0] == str(address)
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    )


_PRIVATE: Final = tuple(
    ipaddress.ip_network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)


def _is_private(address: _Address) -> bool:
    """Return the result of Go's IsPrivate (RFC 1918, RFC 4193); Python's covers far more."""
    return any(address in block for block in _PRIVATE)


def _is_own_name(host: str) -> bool:
    name = host.lower()
    if name in {"", "localhost", socket.gethostname().lower()}:
        return True
    return name.endswith((".localhost", ".local", ".internal"))


def _without_port(host: str) -> str:
    found = re.fullmatch(r"(?:\[(.*)\]|([^:]*))(?::[0-9]*)?", host)
    return host if found is None else found[1] or found[2] or ""


# --------------------------------------------------------------------------- no route


@web.middleware
async def handle_unrouted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer like Gin if no route matches the path or the method."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        if elsewhere := await _without_slash(request):
            # Redirects of other methods must keep the method and the body.
            status = 301 if request.method == hdrs.METH_GET else 307
            return web.Response(status=status, headers={hdrs.LOCATION: elsewhere})
        return web.Response(status=404, text="404 page not found")
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted(error.allowed_methods))
        return web.Response(status=405, text="405 method not allowed", headers={hdrs.ALLOW: allow})


async def _without_slash(request: web.Request) -> str | None:
    path = request.rel_url.raw_path
    if path == "/" or not path.endswith("/"):
        return None
    url = request.rel_url.with_path(path[:-1], encoded=True, keep_query=True)
    found = await request.app.router.resolve(request.clone(rel_url=url))
    return None if found.http_exception else str(url)
