"""From a request to the token ids of a slot: checked, joined, and cut where they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specd.core import EngineRequest, Image, TokenId
from specd.engine.backend import Vocabulary
from specd.engine.media import Part, Prompt
from specd.errors import ContextLengthExceeded, InvalidRequest

#: Of one prompt's text: some four million tokens, more than any context has.
MAX_CHARACTERS = 2**24
#: Images and sounds of one prompt: each is unpacked before it is known what it takes.
MAX_FILES = 256


def check_size(pieces: Iterable[str | TokenId | Image]) -> int:
    """Characters of the text.  Raises InvalidRequest for what is too much to be read at all."""
    pieces = list(pieces)
    n_characters = sum(len(piece) for piece in pieces if isinstance(piece, str))
    if n_characters > MAX_CHARACTERS:
        raise InvalidRequest(
            f"prompt too large: {n_characters} characters, and at most {MAX_CHARACTERS} are read"
        )
    n_files = sum(isinstance(piece, Image) for piece in pieces)
    if n_files > MAX_FILES:
        raise InvalidRequest(f"{n_files} images in one prompt, and at most {MAX_FILES} are read")
    return n_characters


class EmptyPrompt(InvalidRequest):
    """Of no tokens at all."""


def prompt(
    pieces: Iterable[str | TokenId | Image],
    vocabulary: Vocabulary,
    parts: Callable[[bytes], Sequence[Part]],
    *,
    add_bos: bool,
) -> Prompt:
    """The pieces as a slot holds them; parts: what the file of an image becomes.

    Raises InvalidRequest for an id the model does not have.  Native code ends the process over such
    an id, so nothing unchecked may pass here.
    """
    result = Prompt()
    for piece in pieces:
        # BOS stands before the first piece alone, and before an image by itself.
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
        raise EmptyPrompt("the prompt is empty and the model has no token to begin with")
    return result


def text_of(tokens: Iterable[TokenId], vocabulary: Vocabulary) -> str:
    """Return the text of tokens, control tokens as a prompt spells them.

    Raises InvalidRequest for an id the model does not have.
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
    """A prompt that leaves room in a context of n_ctx tokens.

    One too long keeps its first n_keep tokens and loses whole blocks from its middle, so that about
    half of the rest stays free.  Raises ContextLengthExceeded where the request forbids that, or
    an image would be cut.
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
    """Tokens that a request may fill of a slot of n_ctx: fewer, where it asked for fewer."""
    return min(request.n_ctx, n_ctx) if request.n_ctx > 0 else n_ctx


def n_keep_of(request: EngineRequest, n_ctx: int, *, begins_with_bos: bool) -> int:
    """Tokens at the start that no shift drops: the request's n_keep (−1: all) and the BOS."""
    asked = n_ctx if request.n_keep < 0 else request.n_keep
    return min(asked + begins_with_bos, n_ctx - 4)
