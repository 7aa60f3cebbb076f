"""The parameters and bytes that a model reads per token."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specd.store.gguf import GgufHeader, TensorInfo
from specd.store.gguf_metadata import metadata_of, read_metadata
from tests.gguf_files import SHAPE, VOCABULARY, write_llama


def tensors(*named: tuple[str, int]) -> tuple[TensorInfo, ...]:
    """Return a tensor with that many parameters of two bytes each."""
    return tuple(TensorInfo(name, "F16", (n,), 2 * n) for name, n in named)


def facts(values: dict[str, int], *named: tuple[str, int]) -> tuple[int, int, int]:
    header = GgufHeader(
        Path("x"),
        {"general.architecture": "m", **{f"m.{k}": v for k, v in values.items()}},
        tensors(*named),
    )
    found = metadata_of(header)
    return found.n_parameters, found.n_active_parameters, found.read_bytes


def test_a_dense_model_reads_all_but_the_token_embeddings() -> None:
    parts = ("token_embd.weight", 100), ("blk.0.ffn_up.weight", 50), ("output.weight", 100)
    assert facts({}, *parts) == (250, 250, 300)


def test_token_embeddings_shared_with_the_output_are_read() -> None:
    assert facts({}, ("token_embd.weight", 100), ("blk.0.ffn_up.weight", 50)) == (150, 150, 300)


def test_only_used_experts_and_all_shared_experts_count() -> None:
    parts = (
        ("token_embd.weight", 100),
        ("blk.0.ffn_gate_exps.weight", 1280),
        ("blk.0.ffn_up_shexp.weight", 30),
        ("blk.0.attn_q.weight", 20),
        ("output.weight", 100),
    )
    use = {"expert_count": 128, "expert_used_count": 8}
    assert facts(use, *parts) == (1530, 100 + 80 + 30 + 20 + 100, 2 * (80 + 30 + 20 + 100))


def test_all_experts_count_without_a_number_of_used_ones() -> None:
    part = ("blk.0.ffn_gate_exps.weight", 1280)
    for use in ({}, {"expert_count": 8}, {"expert_count": 4, "expert_used_count": 8}):
        assert facts(use, part) == (1280, 1280, 2560)


def test_vision_and_audio_tensors_do_not_count() -> None:
    parts = ("v.blk.0.attn_q.weight", 70), ("mm.0.weight", 7), ("blk.0.ffn_up.weight", 50)
    assert facts({}, *parts) == (127, 50, 100)


def test_metadata_of_a_file(tmp_path: Path) -> None:
    table = len(VOCABULARY) * SHAPE.n_embd
    path = write_llama(tmp_path / "m.gguf", tensors={"extra": np.zeros(8, np.float32)})
    found = read_metadata(path)
    assert found.n_active_parameters == found.n_parameters
    assert found.read_bytes == 4 * (found.n_parameters - table)
