"""The sizes in a GGUF's header from which the memory of its model is estimated."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.architectures import RECURRENT_OR_HYBRID, WITHOUT_LM_HEAD
from specd.store.gguf import MULTIMODAL_PREFIXES, GgufHeader, read_header

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.([0-9]{1,6})\.")
#: More layers than any model has; limits the work for a hostile file.
_MAX_LAYERS: Final = 1 << 12
#: Prefixes of tables read by token or position, which may stay in main memory.
_INPUT: Final = ("token_embd.", "token_types.", "position_embd.", "per_layer_token_embd.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, from which placement estimates its memory.

    layer_bytes: weights of each layer.  input_bytes: token embeddings.
    output_bytes: tensors after the last layer.
    tied_bytes: token embeddings that also serve as the output matrix; 0 if it has its own.
    n_ctx_train: 0 if unknown.  has_head: it computes logits.
    is_recurrent: some layers keep a running state.
    n_key, n_value: elements per token in the widest layer's KV cache.
    n_query: elements of all heads' queries.  n_ff: inner elements of the widest feed-forward, of
    all experts that a token uses.
    has_window: some layers may attend through a sliding window.
    has_bias: attention adds a bias by distance, as T5 does, and cannot be flash attention.
    """

    architecture: str
    layer_bytes: tuple[int, ...]
    input_bytes: int
    output_bytes: int
    tied_bytes: int
    n_ctx_train: int
    n_vocab: int
    n_heads: int = 0
    n_embd: int = 0
    n_key: int = 0
    n_value: int = 0
    n_query: int = 0
    n_ff: int = 0
    has_head: bool = True
    is_recurrent: bool = False
    has_window: bool = False
    has_bias: bool = False

    @property
    def weights_bytes(self) -> int:
        """Size of all weights in the file, each counted once."""
        return sum(self.layer_bytes) + self.input_bytes + self.output_bytes


def read_shape(path: Path) -> Shape:
    """Read the shape of a GGUF file.  Raises StoreError."""
    return shape_of(read_header(path))


def shape_of(header: GgufHeader) -> Shape:
    """Return the shape of a header; senseless numbers in it count as 0."""
    n_layers = min(_size(header, "block_count"), _MAX_LAYERS)
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
        elif not tensor.name.startswith(MULTIMODAL_PREFIXES):
            outputs += tensor.n_bytes
    has_head = header.architecture not in WITHOUT_LM_HEAD
    # llama.cpp does not load the layers for multi-token prediction.
    n_own = n_layers - _size(header, "nextn_predict_layers")
    n_heads, n_embd = _size(header, "attention.head_count"), _size(header, "embedding_length")
    n_kv_heads = _size(header, "attention.head_count_kv", n_heads)
    n_head_key = _row_size(header, "key_length", n_embd // n_heads if n_heads else 0)
    n_used = max(_size(header, "expert_used_count"), 1)
    dense, expert = (
        max((t.shape[0] for t in header.tensors if t.shape and t.name.endswith(end)), default=0)
        for end in (".ffn_down.weight", ".ffn_down_exps.weight")
    )
    return Shape(
        architecture=header.architecture,
        layer_bytes=tuple(blocks[at] if at < n_own else 0 for at in range(n_layers)),
        input_bytes=inputs,
        output_bytes=outputs,
        tied_bytes=tied if has_head else 0,
        n_ctx_train=_size(header, "context_length"),
        n_vocab=embeddings.shape[1] if embeddings and len(embeddings.shape) > 1 else 0,
        n_heads=n_heads,
        n_embd=n_embd,
        n_key=n_kv_heads * n_head_key,
        n_value=n_kv_heads * _row_size(header, "value_length", n_head_key),
        n_query=n_heads * n_head_key,
        n_ff=max(dense, n_used * expert),
        has_head=has_head,
        is_recurrent=header.architecture in RECURRENT_OR_HYBRID,
        has_window=_size(header, "attention.sliding_window") > 0,
        has_bias=_size(header, "attention.relative_buckets_count") > 0,
    )


def _size(header: GgufHeader, key: str, default: int = 0) -> int:
    """Return the largest number of a key, which has one for all layers or one for each."""
    return max((0, *header.arch_integers(key))) if header.arch_integers(key) else default


def _row_size(header: GgufHeader, key: str, default: int) -> int:
    """Return the elements of a head, in layers with or without a sliding window."""
    names = (f"attention.{key}", f"attention.{key}_swa")
    return max(_size(header, names[0], default), _size(header, names[1]))
