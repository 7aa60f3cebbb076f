"""Write a trained model as a Q8_0 GGUF file that llama.cpp loads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import corpus
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType, quants
from model import DRAFTER, RMS_EPS, TARGET, Llama, ModelShape
from tokenizers import Tokenizer
from torch import Tensor

# The tokenizer adds the beginning (add_bos_token), so the template leaves it out.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{ '<|system|>' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ '<|assistant|>' }}"
    "{%- else -%}{{ '<|user|>' }}"
    "{%- endif -%}"
    "{{ message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

BLOCK_TENSORS = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_output": "attention.out",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


def export(
    model: Llama, tokenizer: Tokenizer, role: str, path: Path, quantized: bool = True
) -> None:
    """Write the weights, the vocabulary and the chat template."""
    writer = GGUFWriter(path, "llama")
    kind = GGMLQuantizationType.Q8_0 if quantized else GGMLQuantizationType.F32
    _add_general(writer, model, role, quantized)
    _add_shape(writer, model.shape)
    _add_vocabulary(writer, tokenizer)
    for name, weight in _tensors(model):
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_general(writer: GGUFWriter, model: Llama, role: str, quantized: bool) -> None:
    writer.add_type("model")
    writer.add_name(f"specd demo {role}")
    writer.add_description("A tiny demonstration model of Python standard library source.")
    writer.add_license("PSF-2.0")
    writer.add_size_label(f"{model.parameter_count() / 1e6:.1f}M")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0 if quantized else LlamaFileType.ALL_F32)
    writer.add_quantization_version(2)


def _add_shape(writer: GGUFWriter, shape: ModelShape) -> None:
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)


def _add_vocabulary(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = set(corpus.SPECIAL_TOKENS)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocabulary[corpus.BOS])
    writer.add_eos_token_id(vocabulary[corpus.END])
    writer.add_eot_token_id(vocabulary[corpus.END])
    writer.add_pad_token_id(vocabulary[corpus.END])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(model: Llama) -> list[tuple[str, np.ndarray]]:
    state = model.state_dict()
    named = [("token_embd.weight", state["embedding.weight"])]
    for layer in range(model.shape.layers):
        for theirs, ours in BLOCK_TENSORS.items():
            weight = state[f"blocks.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = _paired(weight, model.shape.heads)
            named.append((f"blk.{layer}.{theirs}.weight", weight))
    named.append(("output_norm.weight", state["norm.weight"]))
    return [(name, weight.float().contiguous().numpy()) for name, weight in named]


def _paired(weight: Tensor, heads: int) -> Tensor:
    """Reorder a head's rows from two halves to neighbouring pairs, as llama.cpp rotates."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def _halved(weight: Tensor, heads: int) -> Tensor:
    """Return the inverse of _paired."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)


def load_gguf(path: Path, shape: ModelShape) -> Llama:
    """Return a model from a GGUF file of export, with its rounded weights."""
    stored = {
        tensor.name: torch.from_numpy(quants.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in GGUFReader(path).tensors
    }
    state = {
        "embedding.weight": stored["token_embd.weight"],
        "norm.weight": stored["output_norm.weight"],
    }
    for layer in range(shape.layers):
        for theirs, ours in BLOCK_TENSORS.items():
            weight = stored[f"blk.{layer}.{theirs}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = _halved(weight, shape.heads)
            state[f"blocks.{layer}.{ours}.weight"] = weight
    model = Llama(shape)
    model.load_state_dict(state)
    return model


def load(path: Path, shape: ModelShape) -> Llama:
    """Return a model from its checkpoint."""
    model = Llama(shape)
    model.load_state_dict(torch.load(path))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the checkpoints that train.py left.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="train.py's --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--f32", action="store_true", help="keep full precision, to compare")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoints / "tokenizer.json"))
    for role, shape in (("target", TARGET), ("drafter", DRAFTER)):
        model = load(arguments.checkpoints / f"{role}.pt", shape)
        export(model, tokenizer, role, arguments.out / f"{role}.gguf", not arguments.f32)


if __name__ == "__main__":
    main()
