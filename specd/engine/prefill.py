"""Prefill: prompts become tokens, and images enter the cache piece by piece.

The text of a prompt shares the passes of all slots (batching.py).  Embeddings have passes of their
own, one slot at a time, as soon as they are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from specd.core import EngineRequest, Image
from specd.engine import prompt_tokens
from specd.engine.backend import Backend, Vocabulary
from specd.engine.batching import Chunk
from specd.engine.media import Media, MediaCache, Part, Prompt
from specd.engine.slot import Slot, SlotState
from specd.errors import InvalidRequest


class EncodingFailed(Exception):
    """An image of a slot could not be encoded, so the slot's request fails."""

    def __init__(self, slot: Slot, message: str) -> None:
        super().__init__(message)
        self.slot = slot


class Prefill:
    """The prefill of one loop's slots: prepares prompts and evaluates their images.

    cache: None if the model has no projector.  n_ctx: tokens of a slot.
    """

    def __init__(
        self, target: Backend, vocabulary: Vocabulary, cache: MediaCache | None, n_ctx: int
    ) -> None:
        self.target = target
        self._vocabulary = vocabulary
        self._cache = cache
        self._n_ctx = n_ctx
        self._threads = prompt_tokens.tokenizer_threads()

    @property
    def has_media(self) -> bool:
        return self._cache is not None

    def n_ctx(self, request: EngineRequest) -> int:
        return prompt_tokens.n_ctx_of(request, self._n_ctx)

    def prompt(self, request: EngineRequest) -> Prompt | Future[Prompt]:
        """Return the prompt fitted to the context; a future if it is long or has images.

        Raises InvalidRequest.
        """
        n_characters = prompt_tokens.check_size(request.prompt)
        n_images = sum(isinstance(piece, Image) for piece in request.prompt)
        if self._cache is None or n_images == 0:
            refuse = prompt_tokens.refuse_images
            if n_characters > prompt_tokens.MAX_AT_ONCE:
                return self._threads.submit(self._build_fitted_prompt, request, refuse)
            return self._build_fitted_prompt(request, refuse)
        most = self._cache.max_files
        if most is not None and n_images > most:
            raise InvalidRequest(f"this model accepts at most {most} image in one prompt")
        n_ctx = self.n_ctx(request)
        parts = partial(self._cache.parts, n_ctx=n_ctx if n_ctx < self._n_ctx else 0)
        return self._cache.submit(lambda: self._build_fitted_prompt(request, parts))

    def n_keep(self, request: EngineRequest) -> int:
        """Return how many first tokens of a request's prompt no context shift drops."""
        has_bos = self._vocabulary.begins_with_bos()
        return prompt_tokens.n_keep_of(request, self.n_ctx(request), begins_with_bos=has_bos)

    def begin(self, slot: Slot) -> None:
        """Start encoding the images that the slot's cache lacks."""
        for first, media in slot.media.items():
            if first >= slot.n_past:
                self._encode(media)

    def cancel_encoding(self, slot: Slot) -> None:
        """Cancel encodings for the slot that have not begun; other slots will restart theirs."""
        for media in slot.media.values():
            if media.encoding is not None:
                media.encoding.cancel()

    def prefill_media(self, slots: Iterable[Slot]) -> Chunk | None:
        """Evaluate a piece of the first image that is encoded and comes next in its slot.

        Return None if there is none.  Raises EncodingFailed, DecodeFailed.
        """
        if self._cache is None:
            return None
        for slot, first, media in _slots_before_media(slots):
            encoding = self._encode(media)
            if not encoding.done():
                continue
            if (error := encoding.exception()) is not None:
                media.encoding = None
                raise EncodingFailed(slot, str(error))
            begin = slot.n_past - first
            n = min(media.n_tokens - begin, self.target.n_batch)
            ends = slot.n_past + n == len(slot.tokens)
            self.target.decode_media(slot.id, slot.n_past, media, begin, n, wants_logits=ends)
            return Chunk(slot, n, n - 1 if ends else -1)
        return None

    def encoding(self, slots: Iterable[Slot]) -> list[Future[None]]:
        """Return the encodings for which slots wait."""
        return [self._encode(media) for _, _, media in _slots_before_media(slots)]

    def _encode(self, media: Media) -> Future[None]:
        assert self._cache is not None
        return self._cache.encode(media)

    def _build_fitted_prompt(
        self, request: EngineRequest, parts: Callable[[bytes], Sequence[Part]]
    ) -> Prompt:
        prompt = prompt_tokens.prompt(
            request.prompt, self._vocabulary, parts, add_bos=request.add_bos
        )
        return prompt_tokens.fit_prompt(prompt, request, self.n_ctx(request), self.n_keep(request))


def _slots_before_media(slots: Iterable[Slot]) -> Iterator[tuple[Slot, int, Media]]:
    """Yield (slot, index of its first token, image) for slots whose next token is an image's."""
    for slot in slots:
        if slot.state is SlotState.PREFILL and (ahead := slot.next_media) is not None:
            first, media = ahead
            if first <= slot.n_past:
                yield slot, first, media
