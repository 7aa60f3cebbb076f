"""Memory limits for request bodies and for long answers, each and all together.

Without them, many long bodies within their own limit could exhaust the machine.  A body is counted
until its answer has ended, because the parsed messages and images live as long.  A long answer is
counted in a second budget until the client has read it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from specd.errors import InvalidRequest, Unavailable
from specd.metrics import current_record

T = TypeVar("T")

#: One body: twice the longest prompt of an engine, in base64.  Ollama has no limit.
MAX_BODY_BYTES: Final = 128 * 2**20
#: All bodies together.
MAX_BODIES_BYTES: Final = 256 * 2**20
#: All answers together that are being built or sent, without those up to EXEMPT_ANSWER_BYTES.
MAX_ANSWERS_BYTES: Final = 512 * 2**20
#: Shorter answers are not counted.
EXEMPT_ANSWER_BYTES: Final = 2**18
#: Shorter bodies are not counted, so that chats continue while others send long bodies.
EXEMPT_BODY_BYTES: Final = 2**16
#: Long bodies converted at once, each in a thread and with several times its own memory.
MAX_CONVERSIONS: Final = 2


class NoRoom(Unavailable):
    def __init__(self, reason: str = "too many long requests at once") -> None:
        super().__init__(f"server busy, please try again: {reason}")


class MemoryBudget:
    """A memory budget of one application, for the event loop's thread."""

    def __init__(
        self,
        max_bytes: int = MAX_BODIES_BYTES,
        *,
        exempt_bytes: int = EXEMPT_BODY_BYTES,
        error: Callable[[], NoRoom] = NoRoom,
    ) -> None:
        """Create a budget of `max_bytes`.

        exempt_bytes: reservations up to this size are free.  error: raised if too little is left.
        """
        self.exempt_bytes = exempt_bytes
        self._error = error
        self._free_bytes = max_bytes
        self._conversions = asyncio.Semaphore(MAX_CONVERSIONS)

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def reserve(self, n_bytes: int) -> None:
        """Take bytes from the budget.  Raises NoRoom and takes nothing if too few are left."""
        if n_bytes > self._free_bytes:
            raise self._error()
        self._free_bytes -= n_bytes

    def release(self, n_bytes: int) -> None:
        self._free_bytes += n_bytes

    async def convert(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs in a thread; see `run`."""
        return await self.run(lambda: asyncio.to_thread(work))

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`; at most MAX_CONVERSIONS run at once.

        If the client leaves, the work keeps its place until it ends: a thread cannot be cancelled.
        """
        await self._conversions.acquire()
        task = asyncio.ensure_future(work())
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._conversions.release()
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that is never retrieved


def make_answer_budget(max_bytes: int = MAX_ANSWERS_BYTES) -> MemoryBudget:
    """Return the budget for all long answers of one application."""
    return MemoryBudget(
        max_bytes,
        exempt_bytes=EXEMPT_ANSWER_BYTES,
        error=lambda: NoRoom("too many long answers at once"),
    )


class BudgetReservation:
    """The bytes that one request has taken from a budget.

    n_bytes: size so far of its body or its answer.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.n_bytes = 0
        self._n_reserved = 0

    def grow(self, n_bytes: int) -> None:
        """Add bytes to the reservation.  Raises NoRoom."""
        self.n_bytes += n_bytes
        self.resize(self.n_bytes)

    def resize(self, n_bytes: int) -> None:
        """Set the reservation to `n_bytes`.  Raises NoRoom."""
        wanted = n_bytes if n_bytes > self.budget.exempt_bytes else 0
        if wanted > self._n_reserved:
            self.budget.reserve(wanted - self._n_reserved)
        else:
            self.budget.release(self._n_reserved - wanted)
        self._n_reserved = wanted


_BODY_RESERVATION: Final = web.RequestKey("specd_share", BudgetReservation)
_ANSWER_RESERVATION: Final = web.RequestKey("specd_answer_share", BudgetReservation)


def budget_middleware(bodies: MemoryBudget, answer_budget: MemoryBudget) -> Middleware:
    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        body = request[_BODY_RESERVATION] = BudgetReservation(bodies)
        answer = request[_ANSWER_RESERVATION] = BudgetReservation(answer_budget)
        try:
            return await handler(request)
        finally:
            body.resize(0)
            answer.resize(0)

    return serve


def body_reservation(request: web.Request) -> BudgetReservation:
    return request[_BODY_RESERVATION]


def answer_reservation(request: web.Request) -> BudgetReservation:
    return request[_ANSWER_RESERVATION]


async def send_if_long(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a long answer and return once the client has read it; return a short one unsent.

    aiohttp sends answers after all middlewares have ended, where their memory is not counted.
    Raises NoRoom.
    """
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or len(body) <= EXEMPT_ANSWER_BYTES:
        return response
    assert isinstance(response, web.Response)
    answer_reservation(request).grow(len(body))
    # Sent in pieces: asyncio would keep a copy of a single text until it is sent.
    response.body = io.BytesIO(body)
    del body
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        current_record().left = True
    return response


async def read_body(request: web.Request) -> bytes:
    """Read the whole body; call it once.

    Raises NoRoom, InvalidRequest for an incomplete body, HTTPRequestEntityTooLarge.
    """
    reservation, body = body_reservation(request), bytearray()
    try:
        while piece := await request.content.readany():
            reservation.grow(len(piece))
            body += piece
            if len(body) > request.client_max_size:
                raise web.HTTPRequestEntityTooLarge(request.client_max_size, len(body))
    except web.RequestPayloadError as error:
        raise InvalidRequest("unexpected EOF") from error
    return bytes(body)
