"""Write small random LoRA adapters, and models with adapters merged into their weights."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tests.gguf_files import Array

MATRICES = ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output.weight")


def write_lora(
    path: Path,
    base: Path,
    *,
    matrices: Sequence[str] = MATRICES,
    architecture: str = "llama",
    kind: str = "lora",
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    invocation: Sequence[int] = (),
) -> Path:
    """Write an adapter for an F32 `base` that changes its answers; return its path.

    invocation: tokens that activate it, which make it an aLoRA.
    """
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    if invocation:
        key, ids = "adapter.alora.invocation_tokens", GGUFValueType.UINT32
        writer.add_key_value(key, list(invocation), GGUFValueType.ARRAY, sub_type=ids)
    for tensor in GGUFReader(base).tensors:
        if tensor.name in matrices:
            rows, columns = tensor.data.shape
            a = random.standard_normal((rank, columns)) / np.sqrt(columns)
            b = random.standard_normal((rows, rank)) / np.sqrt(rank)
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_merged(path: Path, base: Path, *adapters: Path, alpha: float = 8.0) -> Path:
    """Write `base` with the adapters' products added to its matrices; return the path."""
    shutil.copy(base, path)
    merged = GGUFReader(path, "r+")
    matrices = {tensor.name: tensor.data for tensor in merged.tensors}
    for adapter in adapters:
        parts: dict[str, Array] = {t.name: t.data for t in GGUFReader(adapter).tensors}
        for name in {name.rpartition(".")[0] for name in parts}:
            a, b = parts[f"{name}.lora_a"], parts[f"{name}.lora_b"]
            matrices[name] += alpha / len(a) * b @ a
    merged.data.flush()
    return path
