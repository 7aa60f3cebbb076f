"""How many tokens a prompt is, whole and without an answer."""

from __future__ import annotations

import asyncio
from typing import Final

from specd import core, errors
from specd.generation.call import Call, Rendered
from specd.scheduler import Lease

#: What Ollama takes for an image when it makes a chat fit (contract 2.3).
TOKENS_PER_IMAGE: Final = 768


async def n_prompt_tokens(call: Call, lease: Lease) -> int:
    """Nothing is left out to make it fit.  An image is an estimate."""
    rendered = Rendered(await asyncio.to_thread(call.render), tuple(call.images()))
    request = call.engine_request(rendered, lease.facts.n_ctx, lambda: 0)
    total, add_bos = 0, request.add_bos
    for piece in request.prompt:
        match piece:
            case str():
                total += len(await _tokenize(lease, piece, add_bos=add_bos))
                add_bos = False
            case core.Image():
                total += TOKENS_PER_IMAGE
            case _:
                total += 1
    return total


async def _tokenize(lease: Lease, text: str, *, add_bos: bool) -> list[int]:
    try:
        return await lease.tokenize(text, add_bos=add_bos)
    except errors.EngineCrashed:
        # Until it is gone, the scheduler would grant it again.
        await lease.engine.ended()
        raise
