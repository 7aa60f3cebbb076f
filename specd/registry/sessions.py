"""Whom a registry may have us ask: who is inside this machine's network, and who is not let there.

Names are judged by what they resolve to: any name can be given the address of a router.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from specd.errors import RegistryError

_READ_BUFFER_BYTES: Final = 2**20
#: Names that no public DNS has.
_PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa")


def is_private_host(host: str) -> bool:
    """Whether it is this machine or its network by its very text; nothing is looked up."""
    name = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # `0x7f.1` and `2130706433` are addresses, too, to whoever resolves them.
            address = ipaddress.ip_address(socket.inet_aton(name))
        except (OSError, ValueError):
            return "." not in name or name.endswith(_PRIVATE_SUFFIXES)
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


class PublicResolver(AbstractResolver):
    """Resolves to addresses of the internet alone.  Raises RegistryError where there is none."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public_only = [result for result in found if not is_private_host(result["host"])]
        if found and not public_only:
            raise RegistryError(
                f"{host} is {found[0]['host']}, which is no address of the internet"
            )
        return public_only

    async def close(self) -> None:
        await self._resolver.close()


class PeerRequest(aiohttp.ClientResponse):
    """peer: the address that answers, a proxy's where there is one."""

    peer = ""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        # Later the connection may have gone back already.
        if connection.transport is not None:
            self.peer = str(connection.transport.get_extra_info("peername", ("",))[0])
        return await super().start(connection)


def is_from_private_peer(response: aiohttp.ClientResponse) -> bool:
    """Of an answer without a proxy."""
    return (
        isinstance(response, PeerRequest) and bool(response.peer) and is_private_host(response.peer)
    )


@dataclass(frozen=True, slots=True)
class Sessions:
    """anywhere: asks whom it is told to.  outside: whom somebody of the internet names.

    Two, since each keeps connections: those into the network are not for both.
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
    """headers: sent with each request.  ssl: False takes any certificate."""
    found = resolver or aiohttp.ThreadedResolver()

    def session(resolver: AbstractResolver) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # Each transfer has its own bound.
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl, resolver=resolver),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            response_class=PeerRequest,
        )

    return Sessions(any_host=session(found), public_only=session(PublicResolver(found)))
