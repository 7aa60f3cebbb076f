"""Prompts as tokens: checked, joined, and cut to the context, or only counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn, TypeVar, cast

from specd.core import EngineRequest, Failed, FailureKind, Image, TokenId
from specd.engine.backend import Vocabulary
from specd.engine.media import MediaCache, Part, Prompt
from specd.errors import ContextLengthExceeded, InvalidRequest, WorkerDied

T = TypeVar("T")

#: Most characters of a prompt's text: about four million tokens, more than any context has.
MAX_CHARACTERS = 2**24
#: Most images and sounds of a prompt; each must be decoded before its size is known.
MAX_FILES = 256
#: Longest text in characters that is tokenized between two steps.  Threads tokenize longer ones,
#: since all other answers would wait: a million letters take a second and more.  So do 2,000
#: control tokens, because some pre-tokenizers compile their regex for each text between them.
MAX_AT_ONCE = 2**12
_N_THREADS = 2


def check_size(pieces: Iterable[str | TokenId | Image]) -> int:
    """Return the number of characters of the text.  Raises InvalidRequest above a limit."""
    pieces = list(pieces)
    n_characters = sum(len(piece) for piece in pieces if isinstance(piece, str))
    if n_characters > MAX_CHARACTERS:
        raise InvalidRequest(
            f"prompt too large: {n_characters} characters; the limit is {MAX_CHARACTERS}"
        )
    n_files = sum(isinstance(piece, Image) for piece in pieces)
    if n_files > MAX_FILES:
        raise InvalidRequest(f"{n_files} images in one prompt; the limit is {MAX_FILES}")
    return n_characters


class EmptyPrompt(InvalidRequest):
    """A prompt without any token."""


def prompt(
    pieces: Iterable[str | TokenId | Image],
    vocabulary: Vocabulary,
    parts: Callable[[bytes], Sequence[Part]],
    *,
    add_bos: bool,
) -> Prompt:
    """Return the pieces as tokens and media.  parts: converts the file of an image.

    Raises InvalidRequest for an id that the model does not have.  Native code would end the process
    on such an id, so every id is checked here.
    """
    result = Prompt()
    for kind, group in itertools.groupby(pieces, type):
        if kind is int:  # the daemon sends a long prompt as ids if it has counted them
            result.tokens.extend(_check_tokens(list(cast(Iterator[TokenId], group)), vocabulary))
            continue
        for piece in group:
            # BOS goes before the first piece only; before an image it is a piece of its own.
            begins = add_bos and not result.tokens
            if isinstance(piece, Image):
                if begins:
                    result.add(vocabulary.tokenize("", add_bos=True))
                result.add(parts(piece.data))
            else:
                result.add(vocabulary.tokenize(cast(str, piece), add_bos=begins))
    if not result.tokens:
        raise EmptyPrompt("the prompt is empty and the model has no BOS token to start from")
    return result


def text_of(tokens: Iterable[TokenId], vocabulary: Vocabulary) -> str:
    """Return the text of tokens, with control tokens spelled as in a prompt.

    Raises InvalidRequest for an id that the model does not have.
    """
    return b"".join(
        vocabulary.spelling(_check_token(token, vocabulary)) for token in tokens
    ).decode(errors="replace")


def _check_tokens(tokens: list[TokenId], vocabulary: Vocabulary) -> list[TokenId]:
    for extreme in (min(tokens), max(tokens)):
        _check_token(extreme, vocabulary)
    return tokens


def _check_token(token: TokenId, vocabulary: Vocabulary) -> TokenId:
    if 0 <= token < vocabulary.n_vocab:
        return token
    raise InvalidRequest(
        f"token id {token} is out of range: this model has {vocabulary.n_vocab} tokens"
    )


def fit_prompt(result: Prompt, request: EngineRequest, n_ctx: int, n_keep: int) -> Prompt:
    """Return the prompt, cut if it does not fit into n_ctx tokens with room for an answer.

    A prompt that is too long keeps its first n_keep tokens and loses whole blocks from its middle,
    so that about half of the rest stays free.  Raises ContextLengthExceeded if the request forbids
    that, or if the prompt has images.
    """
    tokens = result.tokens
    if len(tokens) < n_ctx:
        return result
    if result.media or not (request.truncate and request.shift):
        raise ContextLengthExceeded(len(tokens), n_ctx)
    n_block = max((n_ctx - n_keep) // 2, 1)
    n_erased = (len(tokens) - n_keep - n_block) // n_block * n_block
    return Prompt(tokens[:n_keep] + tokens[n_keep + n_erased :])


def n_ctx_of(request: EngineRequest, n_ctx: int) -> int:
    """Return the context of a request in tokens: what it asks for, at most the slot's n_ctx."""
    return min(request.n_ctx, n_ctx) if request.n_ctx > 0 else n_ctx


def n_keep_of(request: EngineRequest, n_ctx: int, *, begins_with_bos: bool) -> int:
    """Return how many first tokens no shift drops: the request's n_keep (−1: all) and the BOS."""
    asked = n_ctx if request.n_keep < 0 else request.n_keep
    return min(asked + begins_with_bos, n_ctx - 4)


def refuse_images(_: bytes) -> NoReturn:
    """Raise InvalidRequest: the `parts` of a model without a projector."""
    raise InvalidRequest("this model has no projector: it cannot be shown images")


def tokenizer_threads() -> ThreadPoolExecutor:
    """Return threads for texts of more than MAX_AT_ONCE characters."""
    return ThreadPoolExecutor(_N_THREADS, thread_name_prefix="tokenizer")


class PieceTokenizer:
    """A tokenizer of prompts that are counted, not run.  cache: None without a projector.

    Results and errors go to a callback, possibly in another thread.  Methods return the future of
    the work, None if it is done.  If it is cancelled before it begins, the callback is not called.
    """

    def __init__(self, vocabulary: Vocabulary, cache: MediaCache | None = None) -> None:
        self._vocabulary = vocabulary
        self._cache = cache
        self._threads = tokenizer_threads()

    def tokenize(
        self,
        pieces: Sequence[str | Image],
        on_result: Callable[[list[TokenId] | InvalidRequest], None],
        *,
        add_bos: bool,
    ) -> Future[None] | None:
        """Call on_result with the tokens of a prompt or the error."""
        parts: Callable[[bytes], Sequence[Part]] = refuse_images
        if self._cache is not None:
            parts = self._cache.parts

        def tokens() -> list[TokenId]:
            try:
                return prompt(pieces, self._vocabulary, parts, add_bos=add_bos).tokens
            except EmptyPrompt:
                return []

        work = _reporting(tokens, on_result, "the prompt cannot be counted")
        try:
            n_characters = check_size(pieces)
        except InvalidRequest as error:
            on_result(error)
            return None
        if self._cache is not None and any(isinstance(piece, Image) for piece in pieces):
            return self._cache.submit(work)
        return self._run(work, n_characters)

    def detokenize(
        self, tokens: Sequence[TokenId], on_result: Callable[[str | InvalidRequest], None]
    ) -> Future[None] | None:
        """Call on_result with the text of the tokens or the error."""

        def text() -> str:
            return text_of(tokens, self._vocabulary)

        work = _reporting(text, on_result, "the tokens cannot be detokenized")
        return self._run(work, len(tokens))

    def _run(self, work: Callable[[], None], size: int) -> Future[None] | None:
        if size > MAX_AT_ONCE:
            return self._threads.submit(work)
        work()
        return None


def _reporting(
    work: Callable[[], T], on_result: Callable[[T | InvalidRequest], None], message: str
) -> Callable[[], None]:
    """Return a function that calls on_result with the result of `work` or with its error."""

    def run() -> None:
        try:
            result = work()
        except InvalidRequest as error:
            on_result(error)
        except Exception as error:
            # Boundary: whatever went wrong, the caller needs an answer.
            on_result(InvalidRequest(f"{message}: {error}"))
            raise
        else:
            on_result(result)

    return run


def failed(error: InvalidRequest | WorkerDied) -> Failed:
    """Return the event that ends a request with this error."""
    if isinstance(error, ContextLengthExceeded):
        return Failed(
            kind=FailureKind.CONTEXT_LENGTH,
            message=str(error),
            n_prompt=error.n_prompt,
            n_ctx=error.n_ctx,
        )
    kind = FailureKind.ENGINE if isinstance(error, WorkerDied) else FailureKind.INVALID
    return Failed(kind=kind, message=str(error))
