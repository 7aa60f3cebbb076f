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
_INSIDE: Final = (".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa")


def is_inside(host: str) -> bool:
    """Whether it is this machine or its network by its very text; nothing is looked up."""
    name = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # `0x7f.1` and `2130706433` are addresses, too, to whoever resolves them.
            address = ipaddress.ip_address(socket.inet_aton(name))
        except (OSError, ValueError):
            return "." not in name or name.endswith(_INSIDE)
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


class OutsideOnly(AbstractResolver):
    """Resolves to addresses of the internet alone.  Raises RegistryError where there is none."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        outside = [result for result in found if not is_inside(result["host"])]
        if found and not outside:
            raise RegistryError(
                f"{host} is {found[0]['host']}, which is no address of the internet"
            )
        return outside

    async def close(self) -> None:
        await self._resolver.close()


class Answered(aiohttp.ClientResponse):
    """peer: the address that answers, a proxy's where there is one."""

    peer = ""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        # Later the connection may have gone back already.
        if connection.transport is not None:
            self.peer = str(connection.transport.get_extra_info("peername", ("",))[0])
        return await super().start(connection)


def answered_inside(response: aiohttp.ClientResponse) -> bool:
    """Of an answer without a proxy."""
    return isinstance(response, Answered) and bool(response.peer) and is_inside(response.peer)


@dataclass(frozen=True, slots=True)
class Sessions:
    """anywhere: asks whom it is told to.  outside: whom somebody of the internet names.

    Two, since each keeps connections: those into the network are not for both.
    """

    anywhere: aiohttp.ClientSession
    outside: aiohttp.ClientSession

    async def aclose(self) -> None:
        await self.anywhere.close()
        await self.outside.close()


def opened(
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
            response_class=Answered,
        )

    return Sessions(anywhere=session(found), outside=session(OutsideOnly(found)))
