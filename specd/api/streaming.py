"""Streams or collects an answer.

A stream sends its status with the first piece, and a disconnect cancels it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from specd import core
from specd.api.error_handling import aclosing, to_public_error
from specd.errors import SpecdError
from specd.metrics import current_record

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


async def stream(
    request: web.Request,
    pieces: AsyncIterator[bytes],
    *,
    content_type: str,
    error_piece: Callable[[SpecdError], bytes],
) -> web.StreamResponse:
    """Send each piece as it comes.

    An error before the first piece is raised, so that it gets its own status.  A later error is
    sent as the last piece.
    """
    async with aclosing(pieces):
        piece = await anext(pieces)
        response = web.StreamResponse(headers={"Content-Type": content_type})
        try:
            await response.prepare(request)
            await response.write(piece)
            await _send_rest(response, pieces, error_piece)
            await response.write_eof()
        except ConnectionError:
            current_record().left = True  # the client has gone; closing the pieces frees its slot
        return response


async def _send_rest(
    response: web.StreamResponse,
    pieces: AsyncIterator[bytes],
    error_piece: Callable[[SpecdError], bytes],
) -> None:
    """Send the other pieces: send an error in making a piece, raise an error in sending one."""
    while True:
        try:
            piece = await anext(pieces, b"")
        except Exception as error:  # noqa: BLE001 - the status is already sent
            piece = error_piece(to_public_error(error))
        if not piece:
            return
        await response.write(piece)


def sse_event(data: bytes, *, event: str = "") -> bytes:
    """Return one server-sent event.  data: one line.  event: its name; "" for none."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + data + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedAnswer:
    """A complete answer.  whole: all deltas merged.  done: how it ended."""

    whole: core.Delta
    done: core.Done


async def collect_answer(events: AsyncIterator[core.Delta | core.Done]) -> CollectedAnswer:
    """Return the whole answer of a generation, and close it."""
    deltas: list[core.Delta] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, core.Done):
                return CollectedAnswer(whole=_merge_deltas(deltas), done=event)
            deltas.append(event)
    raise AssertionError("an answer ends in a Done or an error")


def _merge_deltas(deltas: list[core.Delta]) -> core.Delta:
    return core.Delta(
        content="".join(delta.content for delta in deltas),
        thinking="".join(delta.thinking for delta in deltas),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
    )
