"""Who comes in: no more connections than there are file descriptors for, none waited for for ever.

Who is silent gives way to who speaks: where no descriptor is left for another connection, the one
is closed that has owed a request, or the rest of one, for the longest.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from specd.api.requests import UNSEEN, Unseen, is_seen
from specd.daemon.descriptors import Seldom
from specd.daemon.heads import HeadRoom
from specd.daemon.visitor import LINGER_S, Visitor, attended
from specd.daemon.wire import Taking

log = logging.getLogger(__name__)

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Looks at who takes nothing, within the time that a client is waited for.
_N_LOOKS: Final = 8


class Runner(web.AppRunner):
    """An application behind a `Door`.

    timeout_s: how long a client may say nothing while it owes a request or the rest of one, or
    take nothing of its answer; inf is for ever.  options: those of `web.RequestHandler`.
    """

    def __init__(
        self, app: web.Application, *, limit: int, timeout_s: float, **options: Any
    ) -> None:
        super().__init__(app, **options)
        app.middlewares.insert(0, attended)
        self._limit, self._timeout_s = limit, timeout_s
        self._options = options
        self._unseen = app[UNSEEN]

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return Door(
            server,
            self._unseen,
            limit=self._limit,
            timeout_s=self._timeout_s,
            options=self._options,
        )


class Door(web.Server):
    """Takes the place of `server`, whose requests are answered as before.

    unseen: answers what its application does not get to see.
    """

    def __init__(
        self,
        server: web.Server,
        unseen: Unseen,
        *,
        limit: int,
        timeout_s: float,
        options: dict[str, Any],
    ) -> None:
        super().__init__(
            _all_seen(server.request_handler, unseen),
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
        )
        self._limit = limit
        self.unseen = unseen
        self.timeout_s = timeout_s
        self.heads = HeadRoom()
        # aiohttp's timer of idle connections is that of unfinished headers, too.
        finite_s = timeout_s if math.isfinite(timeout_s) else 10.0 * 365 * 24 * 3600
        of_server = {"shutdown_timeout", "handler_cancellation"}
        self._options = {k: v for k, v in options.items() if k not in of_server}
        self._options |= {"keepalive_timeout": finite_s}
        self._n = 0
        self._idle: dict[Visitor, None] = {}  # we wait for them; the longest silent come first
        self._lingering: deque[float] = deque()
        self._said_full = Seldom()
        self._connected: dict[Visitor, Taking] = {}
        if math.isfinite(timeout_s):
            self._look_soon()

    def _look_soon(self) -> None:
        asyncio.get_running_loop().call_later(self.timeout_s / _N_LOOKS, self._look)

    def _look(self) -> None:
        """At those who have something to take."""
        now = asyncio.get_running_loop().time()
        for visitor, taking in list(self._connected.items()):
            if taking.for_s(now) >= self.timeout_s:
                log.info("a client took nothing of its answer for %.0f s", self.timeout_s)
                visitor.cut_off()
        self._look_soon()

    def __call__(self) -> web.RequestHandler:
        return Visitor(self, loop=asyncio.get_running_loop(), **self._options)

    def lets_in(self, visitor: Visitor) -> bool:
        if self._n >= self._limit and not self._make_room():
            return False
        self._n += 1
        self._idle[visitor] = None
        return True

    def connected(self, visitor: Visitor, transport: asyncio.Transport) -> None:
        self._connected[visitor] = Taking(transport)

    def disconnected(self, visitor: Visitor) -> None:
        self._connected.pop(visitor, None)

    def _make_room(self) -> bool:
        leaves = next((visitor for visitor in self._idle if visitor.can_leave), None)
        if self._said_full():
            give_way = (
                "all of them at work: no more are let in" if leaves is None else "idle ones go"
            )
            log.warning("%d connections are open, %s", self._n, give_way)
        if leaves is None:
            return False
        leaves.leave()
        return True

    def may_linger(self) -> bool:
        """Whether who is refused may have a descriptor for another moment."""
        now = asyncio.get_running_loop().time()
        while self._lingering and self._lingering[0] <= now:
            self._lingering.popleft()
        if len(self._lingering) > self._limit // 8:
            return False
        self._lingering.append(now + LINGER_S)
        return True

    def heard(self, visitor: Visitor) -> None:
        if visitor in self._idle:
            self.set_idle(visitor, idle=True)

    def set_idle(self, visitor: Visitor, *, idle: bool) -> None:
        self._idle.pop(visitor, None)
        if idle:
            self._idle[visitor] = None

    def gone(self, visitor: Visitor) -> None:
        self._n -= 1
        self._idle.pop(visitor, None)


def _all_seen(handler: _Handle, unseen: Unseen) -> _Handle:
    """An expectation that nobody meets (417) is told before the middlewares have the request."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if is_seen(request):
                raise
            return unseen.refuse(request, answer.status)

    return handle
