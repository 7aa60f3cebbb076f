"""A chat made to fit its context: without the fewest of its oldest turns that do it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from specd import core, errors
from specd.generation.resolved_request import RenderedPrompt, ResolvedRequest
from specd.generation.truncation_search import TruncationSearch
from specd.scheduler import Lease

#: An answer and the results of its calls, which cannot stand without it.
_MAX_EXTRA_TURNS: Final = 16
#: What an image counts as before the projector is asked: Ollama's 768 tokens of 4 bytes.
_IMAGE_BYTES: Final = 768 * 4


async def fit_to_context(resolved: ResolvedRequest, lease: Lease) -> RenderedPrompt:
    """The prompt; of a chat too long for the context, without the fewest oldest turns that do it.

    The last turn, the user's last and every system turn stay: where they alone are too long, the
    engine decides.
    """
    _, whole = await asyncio.to_thread(_render_without, resolved, 0)
    n_ctx, most = resolved.n_ctx(lease.facts.n_ctx), len(resolved.droppable_turns)
    # No text has more tokens than bytes, but for BOS and a leading space: spare the round trip.
    n_bytes = len(whole.text.encode())
    if most == 0 or (not whole.images and n_bytes + 2 <= n_ctx):
        return whole
    search = TruncationSearch(
        _sizes(resolved, n_bytes), n_bytes + _image_bytes(whole.images), n_ctx
    )
    shortened: RenderedPrompt | None = None
    while (found := search.found) is None:
        guess, n_rendered, prompt = search.guess(), 0, whole
        if guess > 0:
            n_rendered, prompt = await asyncio.to_thread(_render_without, resolved, guess)
        n_tokens = len(await lease.tokenize(*resolved.pieces(prompt), add_bos=True))
        if search.fits(guess, n_tokens, n_rendered=n_rendered):
            shortened = prompt
    return shortened or (await asyncio.to_thread(_render_without, resolved, found))[1]


def _render_without(resolved: ResolvedRequest, n_dropped: int) -> tuple[int, RenderedPrompt]:
    """Return the prompt and how many turns it lacks.

    Many templates insist that a user begins: then a few turns more are left out.
    """
    most = len(resolved.droppable_turns)
    last = min(n_dropped + _MAX_EXTRA_TURNS, most) if n_dropped else 0
    for n in range(n_dropped, last):
        with contextlib.suppress(errors.InvalidRequest):
            return n, RenderedPrompt(resolved.render(n), tuple(resolved.images(n)))
    return last, RenderedPrompt(resolved.render(last), tuple(resolved.images(last)))


def _sizes(resolved: ResolvedRequest, n_bytes: int) -> list[float]:
    """About how many bytes each droppable turn adds to the prompt, which has n_bytes.

    What the template puts around the turns is shared among them equally.
    """
    turns = resolved.messages
    sizes = [_size(turn) for turn in turns]
    each = max(0.0, (n_bytes - sum(sizes)) / len(turns))
    return [each + sizes[i] + _image_bytes(turns[i].images) for i in resolved.droppable_turns]


def _size(turn: core.Message) -> int:
    return len(turn.content.encode()) + sum(
        len(str(resolved.arguments)) for resolved in turn.tool_calls
    )


def _image_bytes(images: tuple[bytes, ...]) -> int:
    return _IMAGE_BYTES * len(images)
