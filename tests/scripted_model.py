"""A GGUF that says what it was told to say: a real model whose answers a test can know.

Each script follows a cue, the last character of the prompt; its words are tokens of their own,
which no text is ever tokenized into.  The weights hold nothing but "after this token comes that
one": attention and feed-forward add zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.gguf_files import Array, Shape, Vocabulary, byte_letters, byte_vocabulary, write_llama

#: How sure it is of the next token: its logit, where all others have 0.
_CERTAINTY = 60.0


def write_scripted_model(
    path: Path, scripts: Mapping[str, str], chat_template: str | None, *, forgets: str = ""
) -> Path:
    """scripts: cue, a single ASCII character → what is said after it, and then no more.

    chat_template: must end in one of the cues.  forgets: cues of scripts of which every next word
    is a wrong one; as a drafter of a model that knows them, it then guesses nothing right.
    """
    vocabulary, successors = _learn(scripts, forgets)
    n_vocab = len(vocabulary)
    # As wide as the vocabulary, in whole heads: each token is a direction of its own.
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
    """A byte vocabulary with the words of all scripts behind it, and what follows what."""
    base = byte_vocabulary(merges=("q x",), pre="gpt-2")  # one at least
    tokens = list(base.tokens)
    successors: dict[int, int] = {}
    for cue, script in scripts.items():
        last = tokens.index(byte_letters()[ord(cue)])
        for word in _words(script, tokens):
            # Itself once more, instead of the next one.
            successors[last] = last if cue in forgets else len(tokens)
            last = len(tokens)
            tokens.append(word)
    n_words = len(tokens) - len(base)
    types = base.types + (base.types[0],) * n_words
    return replace(base, tokens=tuple(tokens), types=types), successors


def _words(script: str, known: list[str]) -> Iterator[str]:
    """The script in pieces of whole words, none of them twice: a vocabulary has each text once."""
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
