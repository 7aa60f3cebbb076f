"""How a prompt is read: its pieces become tokens, and its images enter the cache piece by piece.

The text of a prompt shares the passes of all slots (batching.py); embeddings have passes of their
own, one slot's at a time, as soon as they are encoded.
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

#: Characters up to which a text is read between two steps.  What is longer is read by threads, or
#: all other answers would stand still: a million letters take a second and more, and so do 2,000
#: control tokens, as some pre-tokenizers compile their regex anew for each text between them.
MAX_AT_ONCE = 2**12
_N_THREADS = 2


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_N_THREADS, thread_name_prefix="tokenizer")


class EncodingFailed(Exception):
    """An image has no embeddings: the slot cannot go on."""

    def __init__(self, slot: Slot, message: str) -> None:
        super().__init__(message)
        self.slot = slot


class Prefill:
    """Of one loop.  cache: None where the model has no projector.  n_ctx: tokens of a slot."""

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
        """Whether the model can be shown images at all."""
        return self._cache is not None

    def n_ctx(self, request: EngineRequest) -> int:
        """Tokens that it may fill of a slot."""
        return prompt_tokens.n_ctx_of(request, self._n_ctx)

    def prompt(self, request: EngineRequest) -> Prompt | Future[Prompt]:
        """Fitted to the context; later, where it is long or has images.  Raises InvalidRequest."""
        n_characters = prompt_tokens.check_size(request.prompt)
        n_images = sum(isinstance(piece, Image) for piece in request.prompt)
        if self._cache is None or n_images == 0:
            if n_characters > MAX_AT_ONCE:
                return self._threads.submit(self._build_fitted_prompt, request, _refuse_images)
            return self._build_fitted_prompt(request, _refuse_images)
        most = self._cache.max_files
        if most is not None and n_images > most:
            raise InvalidRequest(f"this model can be shown {most} image in one prompt")
        n_ctx = self.n_ctx(request)
        parts = partial(self._cache.parts, n_ctx=n_ctx if n_ctx < self._n_ctx else 0)
        return self._cache.submit(lambda: self._build_fitted_prompt(request, parts))

    def n_keep(self, request: EngineRequest) -> int:
        """Tokens at the start that no shift drops."""
        begins_with_bos = self._vocabulary.begins_with_bos()
        return prompt_tokens.n_keep_of(
            request, self.n_ctx(request), begins_with_bos=begins_with_bos
        )

    def begin(self, slot: Slot) -> None:
        """Have encoded what the slot's cache lacks."""
        for first, media in slot.media.items():
            if first >= slot.n_past:
                self._encode(media)

    def cancel_encoding(self, slot: Slot) -> None:
        """Have nothing encoded for it that has not begun; who else wants it will ask again."""
        for media in slot.media.values():
            if media.encoding is not None:
                media.encoding.cancel()

    def prefill_media(self, slots: Iterable[Slot]) -> Chunk | None:
        """Evaluate a piece of the first image that is encoded and has its turn.

        Raises EncodingFailed, DecodeFailed.
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
        """What the slots wait for."""
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
    """Slots whose next token is an image's, and where that begins."""
    for slot in slots:
        if slot.state is SlotState.PREFILL and (ahead := slot.next_media) is not None:
            first, media = ahead
            if first <= slot.n_past:
                yield slot, first, media


def _refuse_images(_: bytes) -> NoReturn:
    raise InvalidRequest("this model has no projector: it cannot be shown images")


class PieceTokenizer:
    """Counts for others what a prompt would be.  cache: None where images cannot be shown."""

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
        """Answer with the tokens, or why there are none, from whatever thread.

        Returns what is left to do: cancelled before it begins, it answers nothing.  None: nothing.
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
                # Border: whatever went wrong, someone waits.
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
        """Answer with the text of the tokens, or why there is none, as `tokenize` does."""

        def work() -> None:
            try:
                text: str | InvalidRequest = prompt_tokens.text_of(tokens, self._vocabulary)
            except InvalidRequest as error:
                text = error
            except Exception as error:
                # Border: whatever went wrong, someone waits.
                on_result(InvalidRequest(f"the tokens cannot be spelled: {error}"))
                raise
            on_result(text)

        if len(tokens) > MAX_AT_ONCE:
            return self._threads.submit(work)
        work()
        return None
