"""HTTP sessions that keep a registry on the internet from reaching this machine's network.

Hosts are judged by the addresses they resolve to, since any name may resolve to a router's.
Proxies come from the environment; aiohttp's `trust_env` is not used because it also reads passwords
from `.netrc`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from yarl import URL

from specd.errors import RegistryError

_READ_BUFFER_BYTES: Final = 2**20
#: Suffixes of names that are not in the public DNS.
_PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa")


def is_private_host(host: str) -> bool:
    """Return whether a host's text means this machine or its network, without a DNS lookup."""
    name = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # Resolvers also accept addresses such as `0x7f.1` and `2130706433`.
            address = ipaddress.ip_address(socket.inet_aton(name))
        except (OSError, ValueError):
            return "." not in name or name.endswith(_PRIVATE_SUFFIXES)
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


class PublicResolver(AbstractResolver):
    """Resolver that returns only internet addresses.  Raises RegistryError if there are none."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public_only = [result for result in found if not is_private_host(result["host"])]
        if found and not public_only:
            raise RegistryError(
                f"{host} is {found[0]['host']}, which is not an address on the internet"
            )
        return public_only

    async def close(self) -> None:
        await self._resolver.close()


class PeerResponse(aiohttp.ClientResponse):
    """Response that remembers its peer.

    peer: the address of the server, or of the proxy.
    """

    peer = ""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        # Read it now: after the body, the connection may have returned to the pool.
        if connection.transport is not None:
            self.peer = str(connection.transport.get_extra_info("peername", ("",))[0])
        return await super().start(connection)


def is_from_private_peer(response: aiohttp.ClientResponse) -> bool:
    """Return whether a response without a proxy came from this machine's network."""
    return (
        isinstance(response, PeerResponse)
        and bool(response.peer)
        and is_private_host(response.peer)
    )


@dataclass(frozen=True, slots=True)
class Sessions:
    """Two HTTP sessions, so that they share no connections into this machine's network.

    any_host: for hosts that the user named.  public_only: for hosts that a public registry named.
    """

    any_host: aiohttp.ClientSession
    public_only: aiohttp.ClientSession

    async def aclose(self) -> None:
        await self.any_host.close()
        await self.public_only.close()


def open_sessions(
    *,
    headers: Mapping[str, str] | None = None,
    ssl: bool = True,
    resolver: AbstractResolver | None = None,
) -> Sessions:
    """Open both sessions.  headers: sent with each request.  ssl: False accepts any certificate."""
    found = resolver or aiohttp.ThreadedResolver()

    def session(resolver: AbstractResolver) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # Each transfer limits its own connections.
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl, resolver=resolver),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            response_class=PeerResponse,
        )

    return Sessions(any_host=session(found), public_only=session(PublicResolver(found)))


def proxy_for(url: URL) -> URL | None:
    """Return the proxy for a URL; None without one, and for this machine, as in Go.

    Reads HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
    """
    if url.host is None or _is_loopback(url.host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.authority):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
