"""A chat made to fit its context: without the fewest of its oldest turns that do it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from specd import core, errors
from specd.generation.call import Call, Rendered
from specd.generation.cut import CutSearch
from specd.scheduler import Lease

#: An answer and the results of its calls, which cannot stand without it.
_FURTHER: Final = 16
#: What an image counts as before the projector is asked: Ollama's 768 tokens of 4 bytes.
_IMAGE_BYTES: Final = 768 * 4


async def fitted(call: Call, lease: Lease) -> Rendered:
    """The prompt; of a chat too long for the context, without the fewest oldest turns that do it.

    The last turn, the user's last and every system turn stay: where they alone are too long, the
    engine decides.
    """
    _, whole = await asyncio.to_thread(_render_without, call, 0)
    n_ctx, most = call.n_ctx(lease.facts.n_ctx), len(call.droppable)
    # No text has more tokens than bytes, but for BOS and a leading space: spare the round trip.
    n_bytes = len(whole.text.encode())
    if most == 0 or (not whole.images and n_bytes + 2 <= n_ctx):
        return whole
    search = CutSearch(_sizes(call, n_bytes), n_bytes + _image_bytes(whole.images), n_ctx)
    shortened: Rendered | None = None
    while (found := search.found) is None:
        guess, n_rendered, prompt = search.guess(), 0, whole
        if guess > 0:
            n_rendered, prompt = await asyncio.to_thread(_render_without, call, guess)
        n_tokens = len(await lease.tokenize(*call.pieces(prompt), add_bos=True))
        if search.fits(guess, n_tokens, n_rendered=n_rendered):
            shortened = prompt
    return shortened or (await asyncio.to_thread(_render_without, call, found))[1]


def _render_without(call: Call, n_dropped: int) -> tuple[int, Rendered]:
    """Return the prompt and how many turns it lacks.

    Many templates insist that a user begins: then a few turns more are left out.
    """
    most = len(call.droppable)
    last = min(n_dropped + _FURTHER, most) if n_dropped else 0
    for n in range(n_dropped, last):
        with contextlib.suppress(errors.InvalidRequest):
            return n, Rendered(call.render(n), tuple(call.images(n)))
    return last, Rendered(call.render(last), tuple(call.images(last)))


def _sizes(call: Call, n_bytes: int) -> list[float]:
    """About how many bytes each droppable turn adds to the prompt, which has n_bytes.

    What the template puts around the turns is shared among them equally.
    """
    turns = call.messages
    sizes = [_size(turn) for turn in turns]
    each = max(0.0, (n_bytes - sum(sizes)) / len(turns))
    return [each + sizes[i] + _image_bytes(turns[i].images) for i in call.droppable]


def _size(turn: core.Message) -> int:
    return len(turn.content.encode()) + sum(len(str(call.arguments)) for call in turn.tool_calls)


def _image_bytes(images: tuple[bytes, ...]) -> int:
    return _IMAGE_BYTES * len(images)
