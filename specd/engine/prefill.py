"""Prefill: prompts become tokens, and images enter the cache piece by piece.

The text of a prompt shares the passes of all slots (batching.py).  Embeddings have passes of their
own, one slot at a time, as soon as they are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NoReturn

from specd.core import EngineRequest, Image, TokenId
from specd.engine import prompt_tokens
from specd.engine.backend import Backend, Vocabulary
from specd.engine.batching import Chunk
from specd.engine.media import Media, Part, Prompt
from specd.engine.media_cache import MediaCache
from specd.engine.slot import Slot, SlotState
from specd.errors import InvalidRequest

#: Longest text in characters that is tokenized between two steps.  Threads tokenize longer ones,
#: since all other answers would wait: a million letters take a second and more.  So do 2,000
#: control tokens, because some pre-tokenizers compile their regex for each text between them.
MAX_AT_ONCE = 2**12
_N_THREADS = 2


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_N_THREADS, thread_name_prefix="tokenizer")


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
        self._target = target
        self._vocabulary = vocabulary
        self._cache = cache
        self._n_ctx = n_ctx
        self._threads = _threads()

    @property
    def has_media(self) -> bool:
        """Whether the model accepts images."""
        return self._cache is not None

    def n_ctx(self, request: EngineRequest) -> int:
        """Return the context of a request in tokens."""
        return prompt_tokens.n_ctx_of(request, self._n_ctx)

    def prompt(self, request: EngineRequest) -> Prompt | Future[Prompt]:
        """Return the prompt fitted to the context; a future if it is long or has images.

        Raises InvalidRequest.
        """
        n_characters = prompt_tokens.check_size(request.prompt)
        n_images = sum(isinstance(piece, Image) for piece in request.prompt)
        if self._cache is None or n_images == 0:
            if n_characters > MAX_AT_ONCE:
                return self._threads.submit(self._build_fitted_prompt, request, _refuse_images)
            return self._build_fitted_prompt(request, _refuse_images)
        most = self._cache.max_files
        if most is not None and n_images > most:
            raise InvalidRequest(f"this model accepts at most {most} image in one prompt")
        n_ctx = self.n_ctx(request)
        parts = partial(self._cache.parts, n_ctx=n_ctx if n_ctx < self._n_ctx else 0)
        return self._cache.submit(lambda: self._build_fitted_prompt(request, parts))

    def n_keep(self, request: EngineRequest) -> int:
        """Return how many first tokens of a request's prompt no context shift drops."""
        begins_with_bos = self._vocabulary.begins_with_bos()
        return prompt_tokens.n_keep_of(
            request, self.n_ctx(request), begins_with_bos=begins_with_bos
        )

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
            n = min(media.n_tokens - begin, self._target.n_batch)
            ends = slot.n_past + n == len(slot.tokens)
            self._target.decode_media(slot.id, slot.n_past, media, begin, n, wants_logits=ends)
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


def _refuse_images(_: bytes) -> NoReturn:
    raise InvalidRequest("this model has no projector: it cannot be shown images")


class PieceTokenizer:
    """A tokenizer of prompts that are counted, not run.  cache: None without a projector."""

    def __init__(self, vocabulary: Vocabulary, cache: MediaCache | None = None) -> None:
        self._vocabulary = vocabulary
        self._cache = cache
        self._threads = _threads()

    def tokenize(
        self,
        pieces: Sequence[str | Image],
        on_result: Callable[[list[TokenId] | InvalidRequest], None],
        *,
        add_bos: bool,
    ) -> Future[None] | None:
        """Call on_result with the tokens or the error, possibly from another thread.

        Return the future of the work, None if it is done.  If it is cancelled before it begins,
        on_result is not called.
        """
        parts: Callable[[bytes], Sequence[Part]] = _refuse_images
        if self._cache is not None:
            parts = self._cache.parts

        def work() -> None:
            try:
                prompt = prompt_tokens.prompt(pieces, self._vocabulary, parts, add_bos=add_bos)
            except prompt_tokens.EmptyPrompt:
                on_result([])
            except InvalidRequest as error:
                on_result(error)
            except Exception as error:
                # Boundary: whatever went wrong, the caller needs an answer.
                on_result(InvalidRequest(f"the prompt cannot be counted: {error}"))
                raise
            else:
                on_result(prompt.tokens)

        try:
            n_characters = prompt_tokens.check_size(pieces)
        except InvalidRequest as error:
            on_result(error)
            return None
        if self._cache is not None and any(isinstance(piece, Image) for piece in pieces):
            return self._cache.submit(work)
        if n_characters > MAX_AT_ONCE:
            return self._threads.submit(work)
        work()
        return None

    def detokenize(
        self, tokens: Sequence[TokenId], on_result: Callable[[str | InvalidRequest], None]
    ) -> Future[None] | None:
        """Call on_result with the text of the tokens or the error, as `tokenize` does."""

        def work() -> None:
            try:
                text: str | InvalidRequest = prompt_tokens.text_of(tokens, self._vocabulary)
            except InvalidRequest as error:
                text = error
            except Exception as error:
                # Boundary: whatever went wrong, the caller needs an answer.
                on_result(InvalidRequest(f"the tokens cannot be detokenized: {error}"))
                raise
            on_result(text)

        if len(tokens) > MAX_AT_ONCE:
            return self._threads.submit(work)
        work()
        return None
