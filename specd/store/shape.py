"""What a GGUF's header says of the memory of its model: weights, and what each layer keeps."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.gguf import GgufHeader, TensorInfo, read_header

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
#: More than any model has; what a hostile file claims is not counted up to.
_MAX_LAYERS: Final = 1 << 12
_INPUT: Final = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """key, value: numbers that attention keeps of one token; 0 is none.

    window: tokens that it looks back, 0 for all.  state: numbers of its running state.
    """

    weights_bytes: int
    key: int = 0
    value: int = 0
    window: int = 0
    state: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """input_bytes: embeddings of tokens.  output_bytes: what follows the last layer.

    ties: the embeddings of tokens are the output's matrix too.
    """

    architecture: str
    layers: tuple[Layer, ...]
    input_bytes: int
    output_bytes: int
    ties: bool
    n_vocab: int
    n_embd: int
    n_ff: int
    n_heads: int


def read_shape(path: Path) -> Shape:
    """Raises StoreError."""
    return shape_of(read_header(path))


def shape_of(header: GgufHeader) -> Shape:
    n_layers = min(max(header.own("block_count"), 0), _MAX_LAYERS)
    blocks: Counter[int] = Counter()
    inputs = outputs = 0
    for tensor in header.tensors:
        if found := _BLOCK.match(tensor.name):
            blocks[int(found[1])] += tensor.n_bytes
        elif tensor.name.startswith(_INPUT):
            inputs += tensor.n_bytes
        else:
            outputs += tensor.n_bytes
    names = {tensor.name: tensor for tensor in header.tensors}
    heads, kv_heads = (_per_layer(header, n, n_layers) for n in ("head_count", "head_count_kv"))
    kv_heads = kv_heads or heads
    width = header.own("embedding_length") // max(*heads, 1) if heads else 0
    key, value = (header.own(f"attention.{name}_length", width) for name in ("key", "value"))
    return Shape(
        architecture=header.architecture,
        layers=tuple(
            Layer(
                weights_bytes=blocks[at],
                key=key * kv_heads[at] if kv_heads else 0,
                value=value * kv_heads[at] if kv_heads else 0,
            )
            for at in range(n_layers)
        ),
        input_bytes=inputs,
        output_bytes=outputs,
        ties="output.weight" not in names,
        n_vocab=_rows(names.get("token_embd.weight")),
        n_embd=header.own("embedding_length"),
        n_ff=max(header.own_numbers("feed_forward_length"), default=0),
        n_heads=max(heads, default=0),
    )


def _per_layer(header: GgufHeader, name: str, n_layers: int) -> tuple[int, ...]:
    numbers = header.own_numbers(f"attention.{name}")
    if len(numbers) == 1:
        return numbers * n_layers
    return (numbers + (0,) * n_layers)[:n_layers] if numbers else ()


def _rows(tensor: TensorInfo | None) -> int:
    return math.prod(tensor.shape[1:]) if tensor is not None else 0
