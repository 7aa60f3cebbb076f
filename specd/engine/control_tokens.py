"""Control tokens in answers: they often mark thinking and tool calls.

A control token has no bytes in a text (`Vocabulary.piece`); `Vocabulary.spelling` returns its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specd.core import TokenId
from specd.engine.backend import Vocabulary


def split_at_control_tokens(text: str, vocabulary: Vocabulary) -> list[str | TokenId]:
    """Return the text cut into the control tokens that it spells and the text between them."""
    found: list[str | TokenId] = []
    for token in _control_tokens_in(text, vocabulary):
        before, spelled, after = text.partition(_spelling(token, vocabulary))
        if spelled:
            found += [before, token]
            text = after
    return [part for part in [*found, text] if part != ""]


def visible_bytes(texts: Iterable[str], vocabulary: Vocabulary) -> Callable[[TokenId], bytes]:
    """Return a function from a token to its bytes in an answer.

    The control tokens that occur in `texts` are spelled out; all others have no bytes.
    """
    spellings = {
        token: _spelling(token, vocabulary).encode()
        for text in texts
        for token in _control_tokens_in(text, vocabulary)
    }
    if not spellings:
        return vocabulary.piece
    return lambda token: spellings.get(token) or vocabulary.piece(token)


def _control_tokens_in(text: str, vocabulary: Vocabulary) -> list[TokenId]:
    tokens = vocabulary.tokenize(text, add_bos=False) if text else []
    return [token for token in tokens if not vocabulary.piece(token)]


def _spelling(token: TokenId, vocabulary: Vocabulary) -> str:
    return vocabulary.spelling(token).decode("utf-8", "replace")
