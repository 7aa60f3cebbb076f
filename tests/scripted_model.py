"""Write a GGUF with scripted answers: a real model whose answers a test can predict.

Each script follows a cue, the last character of the prompt.  Its words are separate tokens, which
the tokenizer never produces.  The weights only store which token follows each token: attention
and feed-forward add zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.gguf_files import Array, Shape, Vocabulary, byte_letters, byte_vocabulary, write_llama

#: Logit of the next token; all others have 0.
_CERTAINTY = 60.0


def write_scripted_model(
    path: Path, scripts: Mapping[str, str], chat_template: str | None, *, forgets: str = ""
) -> Path:
    """Write the model and return its path.

    scripts: cue, a single ASCII character → the whole answer after it.
    chat_template: must end in one of the cues.
    forgets: cues whose scripts the model predicts wrongly; as a drafter of a model that knows
    them, all its drafts are rejected.
    """
    vocabulary, successors = _learn(scripts, forgets)
    n_vocab = len(vocabulary)
    # At least as wide as the vocabulary, and divisible by 8: each token has its own dimension.
    shape = Shape(n_embd=-(-n_vocab // 8) * 8, n_layer=1, n_head=4, n_ff=8, n_ctx=4096)
    embedding = np.eye(n_vocab, shape.n_embd, dtype=np.float32)
    output = np.zeros_like(embedding)
    for token in range(n_vocab):
        following = successors.get(token, vocabulary.eos)
        output[following, token] = _CERTAINTY / np.sqrt(shape.n_embd)
    silent: dict[str, Array] = {
        "blk.0.attn_output.weight": np.zeros((shape.n_embd, shape.n_embd), np.float32),
        "blk.0.ffn_down.weight": np.zeros((shape.n_embd, shape.n_ff), np.float32),
    }
    return write_llama(
        path,
        vocabulary=vocabulary,
        shape=shape,
        chat_template=chat_template,
        tensors={"token_embd.weight": embedding, "output.weight": output, **silent},
    )


def _learn(scripts: Mapping[str, str], forgets: str) -> tuple[Vocabulary, dict[int, int]]:
    """Return a byte vocabulary with the scripts' words appended, and each token's successor."""
    base = byte_vocabulary(merges=("q x",), pre="gpt-2")  # at least one is required
    tokens = list(base.tokens)
    successors: dict[int, int] = {}
    for cue, script in scripts.items():
        last = tokens.index(byte_letters()[ord(cue)])
        for word in _words(script, tokens):
            # For a forgotten script, a token follows itself.
            successors[last] = last if cue in forgets else len(tokens)
            last = len(tokens)
            tokens.append(word)
    n_words = len(tokens) - len(base)
    types = base.types + (base.types[0],) * n_words
    return replace(base, tokens=tuple(tokens), types=types), successors


def _words(script: str, known: list[str]) -> Iterator[str]:
    """Yield the script in pieces of whole words; all differ, because tokens must be unique."""
    held = ""
    pieces: list[str] = []
    for word in re.findall(r"\s*\S+\s*$|\s*\S+", script):
        held += "".join(byte_letters()[byte] for byte in word.encode())
        if held not in known and held not in pieces:
            pieces.append(held)
            held = ""
    if held:
        pieces[-1] += held
    yield from pieces
