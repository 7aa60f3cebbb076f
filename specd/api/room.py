"""How much memory the bodies of requests may take, each and all together.

Without it a crowd of long bodies, each within its own bound, ends the machine.  A body has its
share of the room while it is read and until its answer has ended: what became of it, pictures and
turns, lives as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from specd.errors import InvalidRequest, Unavailable

T = TypeVar("T")

#: One body.  Ollama has no limit; twice what an engine takes as one prompt, in base64.
MAX_BODY_BYTES: Final = 128 * 2**20
#: All of them together.
MAX_BODIES_BYTES: Final = 256 * 2**20
#: A body up to here always finds room: chats go on while others send their libraries.
ALWAYS_BYTES: Final = 2**16
#: Long bodies that are worked on at once, each in a thread and in several times its own memory.
MAX_CONVERSIONS: Final = 2


class NoRoom(Unavailable):
    def __init__(self) -> None:
        super().__init__("server busy, please try again: too many long requests at once")


class Room:
    """Of one application, in the thread of its event loop."""

    def __init__(self, most_bytes: int = MAX_BODIES_BYTES) -> None:
        self._left_bytes = most_bytes
        self._conversions = asyncio.Semaphore(MAX_CONVERSIONS)

    @property
    def left_bytes(self) -> int:
        return self._left_bytes

    def take(self, n_bytes: int) -> None:
        """Raises NoRoom, and nothing is taken."""
        if n_bytes > self._left_bytes:
            raise NoRoom
        self._left_bytes -= n_bytes

    def give_back(self, n_bytes: int) -> None:
        self._left_bytes += n_bytes

    async def convert(self, work: Callable[[], T]) -> T:
        """In a thread, when it is its turn."""
        async with self._conversions:
            return await asyncio.to_thread(work)


class Share:
    """Of one request.  n_bytes: of its body, as far as that was read."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.n_bytes = 0
        self._taken = 0

    def grow(self, n_bytes: int) -> None:
        """Raises NoRoom."""
        self.n_bytes += n_bytes
        self.need(self.n_bytes)

    def need(self, n_bytes: int) -> None:
        """Have room for so many, more or fewer than before.  Raises NoRoom."""
        wanted = n_bytes if n_bytes > ALWAYS_BYTES else 0
        if wanted > self._taken:
            self.room.take(wanted - self._taken)
        else:
            self.room.give_back(self._taken - wanted)
        self._taken = wanted


_SHARE: Final = web.RequestKey("specd_share", Share)


def shared(room: Room) -> Middleware:
    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        share = request[_SHARE] = Share(room)
        try:
            return await handler(request)
        finally:
            share.need(0)

    return serve


def share_of(request: web.Request) -> Share:
    return request[_SHARE]


async def read_body(request: web.Request) -> bytes:
    """All of it, once.

    Raises NoRoom, InvalidRequest for one that is cut short, HTTPRequestEntityTooLarge.
    """
    share, body = share_of(request), bytearray()
    try:
        while piece := await request.content.readany():
            share.grow(len(piece))
            body += piece
            if len(body) > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size, len(body))
    except web.RequestPayloadError as error:
        raise InvalidRequest("unexpected EOF") from error
    return bytes(body)
