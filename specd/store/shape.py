"""The sizes in a GGUF's header from which the memory of its model is estimated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.gguf import MULTIMODAL_PREFIXES, GgufHeader, TensorInfo, read_header
from specd.store.kv_layout import (
    LayerKv,
    can_rewind,
    gives_logits,
    has_cache,
    is_recurrent,
    kv_layout,
    mixer,
    per_layer,
)

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.([0-9]{1,6})\.")
#: More layers than any model has; limits the work for a hostile file.
_MAX_LAYERS: Final = 1 << 12
#: GGUF's number for pooling the last token.
_LAST: Final = 3
#: Prefixes of tables read by token or position, which may stay in main memory.
_INPUT: Final = (
    "token_embd.",
    "token_types.",
    "position_embd.",
    "per_layer_token_embd.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Memory of one layer.

    kv_layout: elements in its KV cache and running state.
    """

    weights_bytes: int
    kv_layout: LayerKv


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Experts of a mixture-of-experts model.

    n_used: experts per token.  n_ff: width of one expert.
    """

    n_all: int
    n_used: int
    n_ff: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Elements per token in the widest layer.

    n_ff: feed-forward; a gate, if any, has the same width again.  query: all heads' queries.
    latent: additional elements for latent attention (MLA), else 0.
    mixer: scratch of a layer with a running state.
    streams: elements kept in several versions (Gemma 3n) or separately for each layer.
    is_gated: the feed-forward has a gate.  shares: there are experts that every token uses.
    """

    n_embd: int
    n_ff: int = 0
    query: int = 0
    latent: int = 0
    mixer: int = 0
    streams: int = 0
    is_gated: bool = True
    shares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, from which placement estimates its memory.

    input_bytes: token embeddings.  output_bytes: tensors after the last layer.
    tied_bytes: token embeddings that also serve as the output matrix; 0 if it has its own.
    n_ctx_train: 0 if unknown.  has_head: it computes logits.
    has_cache: it has a KV cache or a running state.  is_recurrent: it has a running state.
    can_rewind: it can drop its last tokens.
    pools_last_token: it embeds with its last token, so a text may be read in several batches.
    has_bias: attention adds a bias by distance, as T5 does, and cannot be flash attention.
    """

    architecture: str
    layers: tuple[Layer, ...]
    input_bytes: int
    output_bytes: int
    tied_bytes: int
    n_ctx_train: int
    n_vocab: int
    n_heads: int
    width: Width
    experts: Experts | None = None
    has_head: bool = True
    has_cache: bool = True
    is_recurrent: bool = False
    can_rewind: bool = True
    pools_last_token: bool = False
    has_bias: bool = False

    @property
    def weights_bytes(self) -> int:
        """Size of all weights in the file, each counted once."""
        layers = sum(layer.weights_bytes for layer in self.layers)
        return layers + self.input_bytes + self.output_bytes


def read_shape(path: Path) -> Shape:
    """Read the shape of a GGUF file.  Raises StoreError."""
    return shape_of(read_header(path))


def shape_of(header: GgufHeader) -> Shape:
    n_layers = min(max(header.arch_integer("block_count"), 0), _MAX_LAYERS)
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
    has_head = gives_logits(header.architecture)
    # llama.cpp does not load the layers for multi-token prediction.
    n_own = n_layers - max(header.arch_integer("nextn_predict_layers"), 0)
    return Shape(
        architecture=header.architecture,
        layers=tuple(
            Layer(weights_bytes=blocks[at] if at < n_own else 0, kv_layout=each)
            for at, each in enumerate(kv_layout(header, n_layers))
        ),
        input_bytes=inputs,
        output_bytes=outputs,
        tied_bytes=tied if has_head else 0,
        n_ctx_train=max(header.arch_integer("context_length"), 0),
        n_vocab=_n_vocab(embeddings),
        n_heads=max((0, *per_layer(header, "attention.head_count", n_layers))),
        width=_width(header, n_layers, tensors),
        experts=_experts(header, tensors),
        has_head=has_head,
        has_cache=has_cache(header.architecture),
        is_recurrent=is_recurrent(header.architecture),
        can_rewind=can_rewind(header.architecture),
        pools_last_token=_pools_last_token(header),
        has_bias=header.arch_integer("attention.relative_buckets_count") > 0,
    )


def _pools_last_token(header: GgufHeader) -> bool:
    """Return whether the embedding is the last token's, and that token attends to all before."""
    is_causal = header.flag(f"{header.architecture}.attention.causal") is not False
    return is_causal and header.arch_integer("pooling_type", -1) == _LAST


def _width(header: GgufHeader, n_layers: int, tensors: Mapping[str, TensorInfo]) -> Width:
    n_embd = max(header.arch_integer("embedding_length"), 0)
    n_heads = max((0, *per_layer(header, "attention.head_count", n_layers)))
    key = header.arch_integer("attention.key_length", n_embd // n_heads if n_heads > 0 else 0)
    latent = 0
    if key_mla := header.arch_integer("attention.key_length_mla"):
        values = header.arch_integer("attention.value_length_mla") + header.arch_integer(
            "attention.value_length"
        )
        latent = n_heads * (key_mla + values)
    streams = n_layers * max(header.arch_integer("embedding_length_per_layer_input"), 0)
    if header.architecture == "gemma3n":
        streams += 10 * n_embd
    return Width(
        n_embd=n_embd,
        n_ff=_inner(tensors, ".ffn_down.weight"),
        query=max(n_heads * key, 0),
        latent=max(latent, 0),
        mixer=mixer(header),
        streams=streams,
        is_gated=_is_gated(tensors),
        shares=any("shexp" in name for name in tensors),
    )


def _inner(tensors: Mapping[str, TensorInfo], down: str) -> int:
    """Return the largest input width of the matrices whose names end in `down`."""
    found = (info.shape for name, info in tensors.items() if name.endswith(down))
    return max((shape[0] for shape in found if shape), default=0)


def _is_gated(tensors: Mapping[str, TensorInfo]) -> bool:
    """Return whether the feed-forward has a gate, either separate or fused into `ffn_up`."""
    ups = [info.shape for name, info in tensors.items() if name.endswith(".ffn_up.weight")]
    inner = _inner(tensors, ".ffn_down.weight")
    fused = any(len(shape) > 1 and shape[1] > inner for shape in ups)
    return fused or any(".ffn_gate" in name for name in tensors)


def _experts(header: GgufHeader, tensors: Mapping[str, TensorInfo]) -> Experts | None:
    n_all = header.arch_integer("expert_count")
    if n_all <= 0:
        return None
    n_used = max(header.arch_integers("expert_used_count"), default=0)
    return Experts(
        n_all=n_all,
        n_used=max(min(n_used, n_all), 0),
        n_ff=_inner(tensors, ".ffn_down_exps.weight"),
    )


def _n_vocab(embeddings: TensorInfo | None) -> int:
    """Return the number of rows of the token embeddings."""
    return embeddings.shape[1] if embeddings is not None and len(embeddings.shape) > 1 else 0
