"""A vocabulary of all bytes and a few longer pieces, with two ends and a control token."""

from __future__ import annotations

import re

from specd.core import TokenId

PIECES = (
    *(bytes([byte]) for byte in range(256)),
    *(b'{"', b'": ', b'", "', b'"}', b"], ", b" [", b"true", b"null", b"12", b"0.5", b"\n  "),
    *(b"na", b"me", b"red", b"re", b"aa", b"\\u00", b"\\n", "é".encode(), "😀".encode()),
    # The same bytes twice, as byte tokens of SentencePiece are.
    b"a",
    b"",  # a control token
    b"",  # end of turn
    b"",  # end of text
)
N_VOCAB = len(PIECES)
CONTROL, *ENDS = range(N_VOCAB - 3, N_VOCAB)


class ByteVocabulary:
    """without: bytes that no piece may contain."""

    n_vocab = N_VOCAB

    def __init__(self, without: bytes = b"") -> None:
        self._without = set(without)

    def piece(self, token: TokenId) -> bytes:
        piece = PIECES[token]
        return b"" if self._without & set(piece) else piece

    def spelling(self, token: TokenId) -> bytes:
        return self.piece(token)

    def is_eog(self, token: TokenId) -> bool:
        return token in ENDS

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        return list(text.encode())

    def begins_with_bos(self) -> bool:
        return False


MARKS = ("<|think|>", "<|/think|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>")


class MarkedVocabulary(ByteVocabulary):
    """A byte vocabulary with named control tokens after its own tokens."""

    n_vocab = N_VOCAB + len(MARKS)
    ids = {mark: N_VOCAB + i for i, mark in enumerate(MARKS)}  # noqa: RUF012

    def piece(self, token: TokenId) -> bytes:
        return super().piece(token) if token < N_VOCAB else b""

    def spelling(self, token: TokenId) -> bytes:
        return MARKS[token - N_VOCAB].encode() if token >= N_VOCAB else self.piece(token)

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        tokens: list[TokenId] = []
        for part in re.split(f"({'|'.join(map(re.escape, MARKS))})", text):
            tokens += [self.ids[part]] if part in self.ids else list(part.encode())
        return tokens
