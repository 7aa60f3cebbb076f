"""How far a pull, a push or a create has come: NDJSON lines, or its last one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from specd import core
from specd.api.error_handling import aclosing, json_reply
from specd.api.go_format import dump_json, omit_empty
from specd.api.ollama.errors import error_line
from specd.api.streaming import NDJSON, stream


async def progress_reply(
    request: web.Request, lines: AsyncIterator[core.Progress], *, streamed: bool
) -> web.StreamResponse:
    """Raises what `lines` do, except where a line has been sent: then the error is the last one.

    A client that goes away closes `lines`.
    """
    if streamed:
        return await stream(request, _pieces(lines), content_type=NDJSON, error_piece=error_line)
    last = core.Progress(status="")
    async with aclosing(lines) as progress:
        async for line in progress:
            last = line
    return json_reply(progress_object(last))


def progress_object(line: core.Progress) -> dict[str, object]:
    return {"status": line.status} | omit_empty(
        digest=line.digest, total=line.total, completed=line.completed
    )


async def _pieces(lines: AsyncIterator[core.Progress]) -> AsyncIterator[bytes]:
    async with aclosing(lines) as progress:
        async for line in progress:
            yield dump_json(progress_object(line)) + b"\n"
