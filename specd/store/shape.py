"""What a GGUF's header says of the memory of its model: weights, and what each layer keeps."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.gguf import GgufHeader, TensorInfo, read_header
from specd.store.kept import Kept, can_rewind, is_recurrent, kept, per_layer

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
#: More than any model has; what a hostile file claims is not counted up to.
_MAX_LAYERS: Final = 1 << 12
#: Looked up by token or by position: main memory serves as well.
_INPUT: Final = (
    "token_embd.",
    "token_types.",
    "position_embd.",
    "per_layer_token_embd.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """kept: what it keeps of the tokens it has read."""

    weights_bytes: int
    kept: Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """n_used: of each token.  n_ff: the width of one."""

    n_all: int
    n_used: int
    n_ff: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """input_bytes: embeddings of tokens.  output_bytes: what follows the last layer.

    tied_bytes: embeddings of tokens that are the output's matrix too; 0 where it has its own.
    n_ctx_train: 0 is unknown.  n_ff: of the widest layer.  head_width: numbers of a key.
    is_recurrent: it keeps a running state; can_rewind: which can be taken back by some tokens.
    """

    architecture: str
    layers: tuple[Layer, ...]
    input_bytes: int
    output_bytes: int
    tied_bytes: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_ff: int
    n_heads: int
    head_width: int
    experts: Experts | None = None
    is_recurrent: bool = False
    can_rewind: bool = True

    @property
    def weights_bytes(self) -> int:
        """Of the file, each once."""
        layers = sum(layer.weights_bytes for layer in self.layers)
        return layers + self.input_bytes + self.output_bytes


def read_shape(path: Path) -> Shape:
    """Raises StoreError."""
    return shape_of(read_header(path))


def shape_of(header: GgufHeader) -> Shape:
    n_layers = min(max(header.own("block_count"), 0), _MAX_LAYERS)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embeddings = tensors.get("token_embd.weight")
    tied = embeddings.n_bytes if embeddings and "output.weight" not in tensors else 0
    blocks: Counter[int] = Counter()
    inputs = outputs = 0
    for tensor in header.tensors:
        if found := _BLOCK.match(tensor.name):
            blocks[int(found[1])] += tensor.n_bytes
        elif tensor.name.startswith(_INPUT):
            inputs += tensor.n_bytes
        else:
            outputs += tensor.n_bytes
    n_embd = max(header.own("embedding_length"), 0)
    n_heads = max(per_layer(header, "attention.head_count", n_layers), default=0)
    return Shape(
        architecture=header.architecture,
        layers=tuple(
            Layer(weights_bytes=blocks[at], kept=each)
            for at, each in enumerate(kept(header, n_layers))
        ),
        input_bytes=inputs,
        output_bytes=outputs,
        tied_bytes=tied,
        n_ctx_train=max(header.own("context_length"), 0),
        n_vocab=_n_vocab(embeddings),
        n_embd=n_embd,
        n_ff=max(header.own_numbers("feed_forward_length"), default=0),
        n_heads=n_heads,
        head_width=header.own("attention.key_length", n_embd // n_heads if n_heads > 0 else 0),
        experts=_experts(header),
        is_recurrent=is_recurrent(header.architecture),
        can_rewind=can_rewind(header.architecture),
    )


def _experts(header: GgufHeader) -> Experts | None:
    n_all = header.own("expert_count")
    if n_all <= 0:
        return None
    widths = header.own_numbers("expert_feed_forward_length") or header.own_numbers(
        "feed_forward_length"
    )
    used = header.own_numbers("expert_used_count")
    return Experts(n_all=n_all, n_used=max(used, default=0), n_ff=max(widths, default=0))


def _n_vocab(embeddings: TensorInfo | None) -> int:
    """One row for each token."""
    return embeddings.shape[1] if embeddings is not None and len(embeddings.shape) > 1 else 0
