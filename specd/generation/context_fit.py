"""Make a chat fit its context by leaving out as few of its oldest turns as possible."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Final

from specd import core, errors
from specd.generation.resolved_request import RenderedPrompt, ResolvedRequest
from specd.generation.truncation_search import TruncationSearch
from specd.scheduler import Lease

#: Most further turns to leave out: the results of tool calls need the answer that made the calls.
_MAX_EXTRA_TURNS: Final = 16
#: Estimated bytes of an image, before its tokens are known: Ollama's 768 tokens of 4 bytes.
_IMAGE_BYTES: Final = 768 * 4


async def fit_to_context(resolved: ResolvedRequest, lease: Lease) -> RenderedPrompt:
    """Return the prompt, without as few of a chat's oldest turns as make it fit the context.

    The last turn, the user's last turn and all system turns stay.  If these are too long, the
    engine decides.
    """
    _, whole = await asyncio.to_thread(_render_without, resolved, 0)
    n_ctx, most = resolved.n_ctx(lease.facts.n_ctx), len(resolved.droppable_turns)
    # A text has at most as many tokens as bytes, plus BOS and a leading space.
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
        adds_bos = resolved.adds_bos(prompt.text)
        tokens = await lease.tokenize(*resolved.pieces(prompt), add_bos=adds_bos)
        if search.fits(guess, len(tokens), n_rendered=n_rendered):
            # The engine would only tokenize the text again.
            known = () if prompt.images else tuple(map(core.TokenId, tokens))
            shortened = replace(prompt, tokens=known)
    return shortened or (await asyncio.to_thread(_render_without, resolved, found))[1]


def _render_without(resolved: ResolvedRequest, n_dropped: int) -> tuple[int, RenderedPrompt]:
    """Return the prompt and how many turns it lacks.

    Many templates require a user's turn first: then a few more turns are left out.
    """
    most = len(resolved.droppable_turns)
    last = min(n_dropped + _MAX_EXTRA_TURNS, most) if n_dropped else 0
    for n in range(n_dropped, last):
        with contextlib.suppress(errors.InvalidRequest):
            return n, RenderedPrompt(resolved.render(n), tuple(resolved.images(n)))
    return last, RenderedPrompt(resolved.render(last), tuple(resolved.images(last)))


def _sizes(resolved: ResolvedRequest, n_bytes: int) -> list[float]:
    """Return about how many bytes each droppable turn adds to the prompt, which has `n_bytes`.

    The text that the template adds is divided equally among the turns.
    """
    turns = resolved.messages
    sizes = [_size(turn) for turn in turns]
    each = max(0.0, (n_bytes - sum(sizes)) / len(turns))
    return [each + sizes[i] + _image_bytes(turns[i].images) for i in resolved.droppable_turns]


def _size(turn: core.Message) -> int:
    return len(turn.content.encode()) + sum(len(str(call.arguments)) for call in turn.tool_calls)


def _image_bytes(images: tuple[bytes, ...]) -> int:
    return _IMAGE_BYTES * len(images)
