"""Write a random llama in Q8_0, small enough to be padded in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specd.bench.gguf_cache import copy_metadata
from tests.gguf_files import MERGES, write_llama


def write_grouped_q8(path: Path, *, has_output: bool = True, dropped: str = "") -> Path:
    """A random llama in Q8_0 whose 4 heads share 2 key-value heads; width 64, 2 layers."""
    random = np.random.default_rng(7)
    donor = gguf.GGUFReader(write_llama(path.with_suffix(".donor")))
    writer = gguf.GGUFWriter(path, "llama")
    tokenizer = {key for key in donor.fields if key.startswith("tokenizer.")}
    copy_metadata(writer, donor, tokenizer)
    writer.add_name("grouped")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)

    def add(name: str, rows: int, columns: int) -> None:
        weight = random.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        data = gguf.quants.quantize(weight.astype(np.float32), q8_0)
        writer.add_tensor(name, data, raw_dtype=q8_0)

    n_vocab = 256 + len(MERGES) + 5
    add("token_embd.weight", n_vocab, 64)
    for layer in range(2):
        sizes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64)}
        sizes |= {"attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64)}
        for name, (rows, columns) in (sizes | {"ffn_down": (64, 96)}).items():
            if name != dropped:
                add(f"blk.{layer}.{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            gains = random.uniform(0.5, 1.5, 64).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", gains)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    if has_output:
        add("output.weight", n_vocab, 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
