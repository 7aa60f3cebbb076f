"""Waits at shutdown for the first request of connections that were just accepted."""

from __future__ import annotations

import asyncio
import weakref

from aiohttp import web
from aiohttp.typedefs import Handler

#: Seconds from a client's connect to its first request, on a busy machine.
DRAIN_TIMEOUT_S = 1.0
_POLL_S = 0.01


class ConnectionDrain:
    """Records which connections have sent a request.

    Create it before the application is set up: it adds a middleware.
    """

    def __init__(self, app: web.Application) -> None:
        self._seen_transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

        @web.middleware
        async def record_transport(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.transport is not None:
                self._seen_transports.add(request.transport)
            return await handler(request)

        app.middlewares.insert(0, record_transport)

    async def wait(self, server: web.AppRunner, *, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Return once every open connection has sent a request, at the latest after `timeout_s`."""
        for _ in range(1 + int(timeout_s / _POLL_S)):
            # Also before the first check: asyncio may have accepted some that aiohttp lacks yet.
            await asyncio.sleep(_POLL_S)
            if not self._has_silent_connection(server):
                return

    def _has_silent_connection(self, server: web.AppRunner) -> bool:
        connections = server.server.connections if server.server is not None else []
        return any(
            connection.transport is not None and connection.transport not in self._seen_transports
            for connection in connections
        )
