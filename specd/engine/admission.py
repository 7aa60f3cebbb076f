"""From a request to the token ids of a slot: checked, joined, and cut where they do not fit."""

from __future__ import annotations

from specd.core import EngineRequest, Image, TokenId
from specd.engine.backend import Vocabulary
from specd.errors import ContextLengthExceeded, InvalidRequest


def prompt_tokens(request: EngineRequest, vocabulary: Vocabulary) -> list[TokenId]:
    """Token ids of the prompt's pieces.  Raises InvalidRequest for an id the model does not have.

    Native code ends the process over such an id, so nothing unchecked may pass here.
    """
    tokens: list[TokenId] = []
    for piece in request.prompt:
        if isinstance(piece, Image):
            raise InvalidRequest("images are not supported by this version of specd")
        if isinstance(piece, str):
            # BOS stands before the first piece alone.
            tokens += vocabulary.tokenize(piece, add_bos=request.add_bos and not tokens)
        elif 0 <= piece < vocabulary.n_vocab:
            tokens.append(piece)
        else:
            raise InvalidRequest(
                f"token id {piece} is out of range: this model has {vocabulary.n_vocab} tokens"
            )
    if not tokens:
        raise InvalidRequest("the prompt is empty and the model has no token to begin with")
    return tokens


def fit(tokens: list[TokenId], request: EngineRequest, n_ctx: int, n_keep: int) -> list[TokenId]:
    """A prompt that leaves room in a context of n_ctx tokens.

    One too long keeps its first n_keep tokens and loses whole blocks from its middle, so that about
    half of the rest stays free.  Raises ContextLengthExceeded where the request forbids that.
    """
    if len(tokens) < n_ctx:
        return tokens
    if not (request.truncate and request.shift):
        raise ContextLengthExceeded(len(tokens), n_ctx)
    n_block = max((n_ctx - n_keep) // 2, 1)
    n_erased = (len(tokens) - n_keep - n_block) // n_block * n_block
    return tokens[:n_keep] + tokens[n_keep + n_erased :]


def n_kept(request: EngineRequest, n_ctx: int, *, begins_with_bos: bool) -> int:
    """Tokens at the start that no shift drops: the request's n_keep (−1: all) and the BOS."""
    asked = n_ctx if request.n_keep < 0 else request.n_keep
    return min(asked + begins_with_bos, n_ctx - 4)
