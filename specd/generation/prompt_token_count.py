"""How many tokens a prompt is, whole and without an answer."""

from __future__ import annotations

import asyncio

from specd import errors
from specd.generation.resolved_request import RenderedPrompt, ResolvedRequest
from specd.scheduler import Lease


async def count_prompt_tokens(resolved: ResolvedRequest, lease: Lease) -> int:
    """Nothing is left out to make it fit."""
    rendered = RenderedPrompt(await asyncio.to_thread(resolved.render), tuple(resolved.images()))
    request = resolved.engine_request(rendered, lease.facts.n_ctx, lambda: 0)
    pieces = [piece for piece in request.prompt if not isinstance(piece, int)]
    n_ids = len(request.prompt) - len(pieces)
    try:
        return n_ids + len(await lease.tokenize(*pieces, add_bos=request.add_bos))
    except errors.EngineCrashed:
        # Until it is gone, the scheduler would grant it again.
        await lease.engine.ended()
        raise
