"""A chat made to fit its context: without the fewest of its oldest turns that do it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from specd import errors
from specd.generation.call import Call, Rendered
from specd.scheduler import Lease

#: An answer and the results of its calls, which cannot stand without it.
_FURTHER: Final = 16


async def fitted(call: Call, lease: Lease) -> Rendered:
    """The prompt; of a chat too long for the context, without the fewest oldest turns that do it.

    The last turn, the user's last and every system turn stay: where they alone are too long, the
    engine decides.
    """
    rendered = await asyncio.to_thread(_render_without, call, 0)
    most = len(call.droppable)
    if most == 0 or await _fits(call, rendered, lease):
        return rendered
    least = 1
    while least < most:
        middle = (least + most) // 2
        rendered = await asyncio.to_thread(_render_without, call, middle)
        if await _fits(call, rendered, lease):
            most = middle
        else:
            least = middle + 1
    return await asyncio.to_thread(_render_without, call, least)


def _render_without(call: Call, n_dropped: int) -> Rendered:
    """Many templates insist that a user begins: then a few turns more are left out."""
    most = len(call.droppable)
    last = min(n_dropped + _FURTHER, most) if n_dropped else 0
    for n in range(n_dropped, last):
        with contextlib.suppress(errors.InvalidRequest):
            return Rendered(call.render(n), tuple(call.images(n)))
    return Rendered(call.render(last), tuple(call.images(last)))


async def _fits(call: Call, rendered: Rendered, lease: Lease) -> bool:
    n_ctx = call.n_ctx(lease.facts.n_ctx)
    # No text has more tokens than bytes, but for BOS and a leading space: spare the round trip.
    if not rendered.images and len(rendered.text.encode()) + 2 <= n_ctx:
        return True
    return len(await lease.tokenize(*call.pieces(rendered), add_bos=True)) <= n_ctx
