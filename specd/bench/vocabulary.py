"""The bytes of every token, as a GGUF's byte-level vocabulary spells them."""

from __future__ import annotations

from pathlib import Path

from specd.bench.gguf_file import open_gguf

#: Bytes that stand for themselves in such a vocabulary; the others are written from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def token_ids(file: Path) -> dict[bytes, int]:
    """Bytes → token; control tokens and others that are no plain text are left out.

    StoreError: no such GGUF.
    """
    tokens = open_gguf(file).get_field("tokenizer.ggml.tokens").contents()
    spelled = _spelled()
    return {
        bytes(spelled[letter] for letter in token): i
        for i, token in enumerate(tokens)
        if spelled.keys() >= set(token) and not token.startswith("<|")
    }


def _spelled() -> dict[str, int]:
    """Letter → byte."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    letters = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return letters | {chr(byte): byte for byte in _PRINTABLE}
