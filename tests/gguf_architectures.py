"""Write small random GGUF files with hybrid or sliding-window memory.

As in `gguf_files.write_llama`, files are deterministic in `seed`.  With `noise`, a drafter
sometimes disagrees with the file of the same seed.  `pooling` makes an embedding model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, PoolingType, quantize

from tests.gguf_files import (
    CHAT_TEMPLATE,
    SHAPE,
    VOCABULARY,
    Array,
    Shape,
    Vocabulary,
    Weights,
    add_general,
    add_vocabulary,
    output_matrix,
)

SMALL = Shape(n_embd=64, n_layer=4, n_head=2, n_ff=128, n_ctx=2048)
Tensors = dict[str, Array]


def write_lfm2(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    shape: Shape = SMALL,
    seed: int = 0,
    noise: float = 0.0,
    quantized: bool = False,
    pooling: PoolingType | None = None,
    sliding_window: int = 0,
) -> Path:
    """Write a hybrid whose layers alternate between short convolutions and attention.

    llama.cpp can take snapshots of its state.
    sliding_window: number of tokens that the attention looks back; 0 is all.
    """
    weights = Weights(seed, noise)
    writer = GGUFWriter(path, "lfm2")
    _add_shape(writer, path.stem, shape, vocabulary, quantized=quantized)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_head_count_kv([shape.n_head * (at % 2) for at in range(shape.n_layer)])
    writer.add_shortconv_l_cache(3)
    if sliding_window:
        writer.add_sliding_window(sliding_window)
    tensors = _ends(weights, vocabulary, shape.n_embd, norm="token_embd_norm.weight")
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        tensors |= _feed_forward(weights, shape, block)
        tensors[block + "attn_norm.weight"] = np.ones(shape.n_embd, np.float32)
        if layer % 2:
            tensors |= _attention(weights, shape, block)
        else:
            tensors |= {
                block + "shortconv.conv.weight": weights.matrix(shape.n_embd, 3),
                block + "shortconv.in_proj.weight": weights.matrix(3 * shape.n_embd, shape.n_embd),
                block + "shortconv.out_proj.weight": weights.matrix(shape.n_embd, shape.n_embd),
            }
    return _finish(writer, tensors, path, quantized=quantized)


def write_qwen35(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    shape: Shape = SMALL,
    seed: int = 0,
    noise: float = 0.0,
    quantized: bool = False,
    pooling: PoolingType | None = None,
    heads: bool = False,
) -> Path:
    """Write a hybrid whose layers alternate between gated delta nets and attention.

    llama.cpp can take snapshots of its state.
    heads: adds a layer that predicts the token after the next one (MTP).
    """
    n_state, n_conv, n_heads = 32, 4, 2
    inner = n_state * n_heads
    weights = Weights(seed, noise)
    writer = GGUFWriter(path, "qwen35")
    whole = replace(shape, n_layer=shape.n_layer + heads)
    _add_shape(writer, path.stem, whole, vocabulary, quantized=quantized)
    writer.add_uint32("qwen35.nextn_predict_layers", int(heads))
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_head_count_kv(shape.n_head)
    writer.add_rope_dimension_sections([shape.n_embd // shape.n_head // 2, 0, 0, 0])
    writer.add_full_attention_interval(2)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_heads)
    writer.add_ssm_group_count(n_heads)
    tensors = _ends(weights, vocabulary, shape.n_embd, norm="output_norm.weight")
    for layer in range(whole.n_layer):
        block = f"blk.{layer}."
        tensors |= _feed_forward(weights, shape, block)
        del tensors[block + "ffn_norm.weight"]
        for norm in ("attn_norm", "post_attention_norm"):
            tensors[f"{block}{norm}.weight"] = np.ones(shape.n_embd, np.float32)
        if layer == shape.n_layer:
            tensors |= _head(weights, shape, block)
        if layer % 2 or layer == shape.n_layer:
            tensors |= _attention(weights, shape, block)
            # One matrix holds query and gate.
            tensors[block + "attn_q.weight"] = weights.matrix(2 * shape.n_embd, shape.n_embd)
        else:
            tensors |= {
                block + "attn_qkv.weight": weights.matrix(3 * inner, shape.n_embd),
                block + "attn_gate.weight": weights.matrix(inner, shape.n_embd),
                block + "ssm_conv1d.weight": weights.matrix(3 * inner, n_conv),
                block + "ssm_dt.bias": np.zeros(n_heads, np.float32),
                block + "ssm_a": -np.ones(n_heads, np.float32),
                block + "ssm_beta.weight": weights.matrix(n_heads, shape.n_embd),
                block + "ssm_alpha.weight": weights.matrix(n_heads, shape.n_embd),
                block + "ssm_norm.weight": np.ones(n_state, np.float32),
                block + "ssm_out.weight": weights.matrix(shape.n_embd, inner),
            }
    return _finish(writer, tensors, path, quantized=quantized)


def write_gemma3(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    shape: Shape = SMALL,
    seed: int = 0,
    noise: float = 0.0,
    quantized: bool = False,
    pooling: PoolingType | None = None,
    sliding_window: int = 32,
) -> Path:
    """Write a model whose layers alternate between sliding-window and full attention."""
    weights = Weights(seed, noise)
    writer = GGUFWriter(path, "gemma3")
    _add_shape(writer, path.stem, shape, vocabulary, quantized=quantized)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_head_count_kv(shape.n_head)
    writer.add_key_length(shape.n_embd // shape.n_head)
    writer.add_value_length(shape.n_embd // shape.n_head)
    writer.add_sliding_window(sliding_window)
    writer.add_sliding_window_pattern(2)
    tensors = _ends(weights, vocabulary, shape.n_embd, norm="output_norm.weight")
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        tensors |= _feed_forward(weights, shape, block)
        tensors |= _attention(weights, shape, block)
        for norm in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            tensors[f"{block}{norm}.weight"] = np.ones(shape.n_embd, np.float32)
    return _finish(writer, tensors, path, quantized=quantized)


def write_qwen2vl(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    shape: Shape = SHAPE,
    seed: int = 0,
    quantized: bool = False,
) -> Path:
    """Write a model whose positions have one dimension of time and two of space (M-RoPE)."""
    weights = Weights(seed, 0.0)
    writer = GGUFWriter(path, "qwen2vl")
    _add_shape(writer, path.stem, shape, vocabulary, quantized=quantized)
    writer.add_head_count_kv(shape.n_head)
    quarter = shape.n_embd // shape.n_head // 4
    writer.add_rope_dimension_sections([quarter, quarter // 2, quarter - quarter // 2, 0])
    tensors = _ends(weights, vocabulary, shape.n_embd, norm="output_norm.weight")
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        tensors |= _feed_forward(weights, shape, block)
        tensors |= _attention(weights, shape, block)
        tensors[block + "attn_norm.weight"] = np.ones(shape.n_embd, np.float32)
        del tensors[block + "attn_q_norm.weight"], tensors[block + "attn_k_norm.weight"]
    return _finish(writer, tensors, path, quantized=quantized)


WRITERS: dict[str, Callable[..., Path]] = {
    "lfm2": write_lfm2,
    "qwen35": write_qwen35,
    "gemma3": write_gemma3,
}


def _add_shape(
    writer: GGUFWriter, name: str, shape: Shape, vocabulary: Vocabulary, *, quantized: bool
) -> None:
    file_type = LlamaFileType.MOSTLY_Q8_0 if quantized else LlamaFileType.ALL_F32
    add_general(writer, name, file_type)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    writer.add_rope_freq_base(10_000.0)
    add_vocabulary(writer, vocabulary, CHAT_TEMPLATE)


def _ends(weights: Weights, vocabulary: Vocabulary, n_embd: int, *, norm: str) -> Tensors:
    return {
        "token_embd.weight": weights.matrix(len(vocabulary), n_embd),
        norm: np.ones(n_embd, np.float32),
        "output.weight": output_matrix(weights, vocabulary, n_embd),
    }


def _feed_forward(weights: Weights, shape: Shape, block: str) -> Tensors:
    return {
        block + "ffn_norm.weight": np.ones(shape.n_embd, np.float32),
        block + "ffn_gate.weight": weights.matrix(shape.n_ff, shape.n_embd),
        block + "ffn_up.weight": weights.matrix(shape.n_ff, shape.n_embd),
        block + "ffn_down.weight": weights.matrix(shape.n_embd, shape.n_ff),
    }


def _attention(weights: Weights, shape: Shape, block: str) -> Tensors:
    n_embd, n_head_dim = shape.n_embd, shape.n_embd // shape.n_head
    return {
        block + "attn_q.weight": weights.matrix(n_embd, n_embd),
        block + "attn_k.weight": weights.matrix(n_embd, n_embd),
        block + "attn_v.weight": weights.matrix(n_embd, n_embd),
        block + "attn_output.weight": weights.matrix(n_embd, n_embd),
        block + "attn_q_norm.weight": np.ones(n_head_dim, np.float32),
        block + "attn_k_norm.weight": np.ones(n_head_dim, np.float32),
    }


def _head(weights: Weights, shape: Shape, block: str) -> Tensors:
    norms = ("enorm", "hnorm", "shared_head_norm")
    return {
        block + "nextn.eh_proj.weight": weights.matrix(shape.n_embd, 2 * shape.n_embd),
        **{f"{block}nextn.{norm}.weight": np.ones(shape.n_embd, np.float32) for norm in norms},
    }


def _finish(writer: GGUFWriter, tensors: Tensors, path: Path, *, quantized: bool) -> Path:
    for name, tensor in tensors.items():
        if quantized and tensor.ndim == 2 and "conv" not in name.split(".")[-2]:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
