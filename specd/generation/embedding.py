"""Embed all texts of a request with one lease."""

from __future__ import annotations

import asyncio

from specd import core, errors
from specd.scheduler import Lease

#: Texts of one request that are sent at the same time: more than the engine takes into a pass.
MAX_IN_FLIGHT = 128


async def embed_all(
    request: core.EmbedRequest, lease: Lease, n_ctx: int | None
) -> tuple[core.Embedding, ...]:
    """Return one embedding per text, in order; the first failure cancels the other texts.

    n_ctx: most tokens of one text, as requested; None is the context that is loaded.  The loaded
    context may be longer than the requested one.
    Raises InvalidRequest, in Ollama's words, for a text that is too long and may not be cut.
    """
    found: dict[int, core.Embedding] = {}
    waiting = iter(enumerate(request.texts))

    async def work() -> None:
        for index, text in waiting:
            entry = await lease.embed(text, truncate=request.truncate, n_ctx=n_ctx)
            request.on_vector(len(entry.vector))
            found[index] = entry

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(request.texts), MAX_IN_FLIGHT)):
                group.create_task(work())
    except ExceptionGroup as failures:
        error = failures.exceptions[0]
        if isinstance(error, errors.ContextLengthExceeded):
            raise errors.InvalidRequest("the input length exceeds the context length") from error
        raise error from None
    return tuple(found[index] for index in range(len(request.texts)))
