"""Conversion of a request's prompt to tokens: checked, joined, and cut to the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specd.core import EngineRequest, Image, TokenId
from specd.engine.backend import Vocabulary
from specd.engine.media import Part, Prompt
from specd.errors import ContextLengthExceeded, InvalidRequest

#: Most characters of a prompt's text: about four million tokens, more than any context has.
MAX_CHARACTERS = 2**24
#: Most images and sounds of a prompt; each must be decoded before its size is known.
MAX_FILES = 256


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
    for piece in pieces:
        # BOS goes before the first piece only; before an image it is a piece of its own.
        begins = add_bos and not result.tokens
        if isinstance(piece, Image):
            if begins:
                result.add(vocabulary.tokenize("", add_bos=True))
            result.add(parts(piece.data))
        elif isinstance(piece, str):
            result.add(vocabulary.tokenize(piece, add_bos=begins))
        else:
            result.add([_check_token(piece, vocabulary)])
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
