"""Write small random GGUF files that llama.cpp loads as embedding models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, PoolingType, TokenType

from tests.gguf_files import (
    VOCABULARY,
    Array,
    Shape,
    Vocabulary,
    Weights,
    add_general,
    add_vocabulary,
    write_llama,
)

SHAPE = Shape(n_embd=32, n_layer=2, n_head=2, n_ff=64, n_ctx=128)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"


def write_bert(
    path: Path,
    *,
    pooling: PoolingType = PoolingType.MEAN,
    shape: Shape = SHAPE,
    seed: int = 0,
    spoiled: bool = False,
) -> Path:
    """Write a random BERT whose words are single letters; return its path.

    spoiled: the weights give vectors of NaN, like those of a damaged file.
    """
    weights = Weights(seed, 0.0)
    n_embd, n_ff = shape.n_embd, shape.n_ff
    writer = GGUFWriter(path, "bert")
    add_general(writer, path.stem)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    n_vocab = _add_word_pieces(writer)
    tensors = {
        "token_embd.weight": weights.matrix(n_vocab, n_embd),
        "token_types.weight": weights.matrix(2, n_embd),
        "position_embd.weight": weights.matrix(shape.n_ctx, n_embd),
        **_norm("token_embd_norm", n_embd),
    }
    for layer in range(shape.n_layer):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors |= _dense(weights, block + name, n_embd, n_embd)
        tensors |= _norm(block + "attn_output_norm", n_embd)
        tensors |= _dense(weights, block + "ffn_up", n_ff, n_embd)
        tensors |= _dense(weights, block + "ffn_down", n_embd, n_ff)
        tensors |= _norm(block + "layer_output_norm", n_embd)
    if spoiled:
        tensors["token_types.weight"] = np.full((2, n_embd), np.nan, np.float32)
    return _finish(writer, tensors, path)


def write_decoder(
    path: Path, *, pooling: PoolingType, shape: Shape = SHAPE, causal: bool = True, seed: int = 0
) -> Path:
    """Write a random llama with pooling; its vocabulary adds BOS to a text but no EOS."""
    extra: dict[str, int | bool | str | float] = {"llama.pooling_type": int(pooling)}
    if not causal:
        extra["llama.attention.causal"] = False
    return write_llama(path, shape=shape, seed=seed, chat_template=None, extra=extra)


def write_t5_encoder(
    path: Path, *, vocabulary: Vocabulary = VOCABULARY, shape: Shape = SHAPE, seed: int = 0
) -> Path:
    """Write the encoder of a random T5, with mean pooling; return its path."""
    weights = Weights(seed, 0.0)
    n_embd, n_ff = shape.n_embd, shape.n_ff
    writer = GGUFWriter(path, "t5encoder")
    add_general(writer, path.stem)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_key_length(n_embd // shape.n_head)
    writer.add_value_length(n_embd // shape.n_head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_relative_attn_buckets_count(32)
    writer.add_pooling_type(PoolingType.MEAN)
    add_vocabulary(writer, vocabulary, None)
    tensors = {
        "token_embd.weight": weights.matrix(len(vocabulary), n_embd),
        "enc.output_norm.weight": np.ones(n_embd, np.float32),
    }
    for layer in range(shape.n_layer):
        block = f"enc.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            tensors[f"{block}{name}.weight"] = weights.matrix(n_embd, n_embd)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}{name}.weight"] = np.ones(n_embd, np.float32)
        tensors[block + "attn_rel_b.weight"] = weights.matrix(32, shape.n_head)
        tensors[block + "ffn_up.weight"] = weights.matrix(n_ff, n_embd)
        tensors[block + "ffn_down.weight"] = weights.matrix(n_embd, n_ff)
    return _finish(writer, tensors, path)


def _add_word_pieces(writer: GGUFWriter) -> int:
    """Add letters that begin a word and letters that continue one; return the number of tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *("\u2581" + letter for letter in _LETTERS), *_LETTERS]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    n_normal = len(tokens) - len(special)
    writer.add_token_types([TokenType.CONTROL] * len(special) + [TokenType.NORMAL] * n_normal)
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    return len(tokens)


def _dense(weights: Weights, name: str, rows: int, columns: int) -> dict[str, Array]:
    bias = 0.1 * weights.matrix(1, rows)[0]
    return {f"{name}.weight": weights.matrix(rows, columns), f"{name}.bias": bias}


def _norm(name: str, n_embd: int) -> dict[str, Array]:
    ones = np.ones(n_embd, np.float32)
    return {f"{name}.weight": ones, f"{name}.bias": np.zeros(n_embd, np.float32)}


def _finish(writer: GGUFWriter, tensors: dict[str, Array], path: Path) -> Path:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
