"""How much memory the bodies of requests may take, each and all together, and so their answers.

Without it a crowd of long bodies, each within its own bound, ends the machine.  A body has its
share of the room while it is read and until its answer has ended: what became of it, pictures and
turns, lives as long.  A long answer has its share of another room from when it is made until the
client has read it.
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

#: One body.  Ollama has no limit; twice what an engine takes as one prompt, in base64.
MAX_BODY_BYTES: Final = 128 * 2**20
#: All of them together.
MAX_BODIES_BYTES: Final = 256 * 2**20
#: All answers that are made or sent at this moment, but for those up to ALWAYS_ANSWER_BYTES.
MAX_ANSWERS_BYTES: Final = 512 * 2**20
#: An answer up to here is always sent.
EXEMPT_ANSWER_BYTES: Final = 2**18
#: A body up to here always finds room: chats go on while others send their libraries.
EXEMPT_BODY_BYTES: Final = 2**16
#: Long bodies that are worked on at once, each in a thread and in several times its own memory.
MAX_CONVERSIONS: Final = 2


class NoRoom(Unavailable):
    def __init__(self, reason: str = "too many long requests at once") -> None:
        super().__init__(f"server busy, please try again: {reason}")


class MemoryBudget:
    """Of one application, in the thread of its event loop."""

    def __init__(
        self,
        max_bytes: int = MAX_BODIES_BYTES,
        *,
        exempt_bytes: int = EXEMPT_BODY_BYTES,
        error: Callable[[], NoRoom] = NoRoom,
    ) -> None:
        """always_bytes: a share up to here takes nothing.  error: where too little is left."""
        self.exempt_bytes = exempt_bytes
        self._error = error
        self._free_bytes = max_bytes
        self._conversions = asyncio.Semaphore(MAX_CONVERSIONS)

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def reserve(self, n_bytes: int) -> None:
        """Raises NoRoom, and nothing is taken."""
        if n_bytes > self._free_bytes:
            raise self._error()
        self._free_bytes -= n_bytes

    def release(self, n_bytes: int) -> None:
        self._free_bytes += n_bytes

    async def convert(self, work: Callable[[], T]) -> T:
        """In a thread, when it is its turn."""
        return await self.run(lambda: asyncio.to_thread(work))

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` returns, with at most MAX_CONVERSIONS of them at once.

        One whose client leaves keeps its place to its end: a thread cannot be cancelled.
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
    """Return the room of all long answers of one application."""
    return MemoryBudget(
        max_bytes,
        exempt_bytes=EXEMPT_ANSWER_BYTES,
        error=lambda: NoRoom("too many long answers at once"),
    )


class BudgetReservation:
    """What one request has taken.  n_bytes: of its body or its answer, as far as that is there."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.n_bytes = 0
        self._n_reserved = 0

    def grow(self, n_bytes: int) -> None:
        """Raises NoRoom."""
        self.n_bytes += n_bytes
        self.resize(self.n_bytes)

    def resize(self, n_bytes: int) -> None:
        """Have room for so many, more or fewer than before.  Raises NoRoom."""
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
    """Send an answer that is long, and return once the client has read it; leave others unsent.

    aiohttp sends an answer after all middlewares have ended, where its memory is not counted.
    Raises NoRoom.
    """
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or len(body) <= EXEMPT_ANSWER_BYTES:
        return response
    assert isinstance(response, web.Response)
    answer_reservation(request).grow(len(body))
    # Sent piece by piece: of one text asyncio keeps a copy until it has gone.
    response.body = io.BytesIO(body)
    del body
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        current_record().left = True
    return response


async def read_body(request: web.Request) -> bytes:
    """All of it, once.

    Raises NoRoom, InvalidRequest for one that is cut short, HTTPRequestEntityTooLarge.
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
