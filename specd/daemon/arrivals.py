"""Who was accepted just before the daemon stops is still heard: nobody else would answer them."""

from __future__ import annotations

import asyncio
import weakref

from aiohttp import web
from aiohttp.typedefs import Handler

#: From the end of a client's connecting to its first request, on a machine with much to do.
PATIENCE_S = 1.0
_LOOK_S = 0.01


class Arrivals:
    """Knows which connections have asked for something.  Before the application is set up."""

    def __init__(self, app: web.Application) -> None:
        self._have_asked: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.transport is not None:
                self._have_asked.add(request.transport)
            return await handler(request)

        app.middlewares.insert(0, note)

    async def heard(self, server: web.AppRunner, *, patience_s: float = PATIENCE_S) -> None:
        """Once every open connection has asked for something; silent ones are given up."""
        for _ in range(1 + int(patience_s / _LOOK_S)):
            # Before the first look, too: asyncio may have accepted some that aiohttp does not know.
            await asyncio.sleep(_LOOK_S)
            if not self._one_is_silent(server):
                return

    def _one_is_silent(self, server: web.AppRunner) -> bool:
        connections = server.server.connections if server.server is not None else []
        return any(
            connection.transport is not None and connection.transport not in self._have_asked
            for connection in connections
        )
