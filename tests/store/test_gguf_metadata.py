"""What of a model takes part in one token."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specd.store.gguf import GgufHeader, TensorInfo
from specd.store.gguf_metadata import metadata_of, read_metadata
from tests.gguf_files import SHAPE, VOCABULARY, write_llama


def tensors(*named: tuple[str, int]) -> tuple[TensorInfo, ...]:
    """Of so many parameters in two bytes each."""
    return tuple(TensorInfo(name, "F16", (n,), 2 * n) for name, n in named)


def facts(values: dict[str, int], *named: tuple[str, int]) -> tuple[int, int, int]:
    header = GgufHeader(
        Path("x"),
        {"general.architecture": "m", **{f"m.{k}": v for k, v in values.items()}},
        tensors(*named),
    )
    found = metadata_of(header)
    return found.n_parameters, found.n_active_parameters, found.read_bytes


def test_of_a_dense_model_all_is_read_but_the_table_of_tokens() -> None:
    parts = ("token_embd.weight", 100), ("blk.0.ffn_up.weight", 50), ("output.weight", 100)
    assert facts({}, *parts) == (250, 250, 300)


def test_a_table_of_tokens_that_is_the_output_too_is_read() -> None:
    assert facts({}, ("token_embd.weight", 100), ("blk.0.ffn_up.weight", 50)) == (150, 150, 300)


def test_of_experts_those_in_use_count_and_of_shared_ones_all() -> None:
    parts = (
        ("token_embd.weight", 100),
        ("blk.0.ffn_gate_exps.weight", 1280),
        ("blk.0.ffn_up_shexp.weight", 30),
        ("blk.0.attn_q.weight", 20),
        ("output.weight", 100),
    )
    use = {"expert_count": 128, "expert_used_count": 8}
    assert facts(use, *parts) == (1530, 100 + 80 + 30 + 20 + 100, 2 * (80 + 30 + 20 + 100))


def test_experts_that_nobody_counts_are_all_in_use() -> None:
    part = ("blk.0.ffn_gate_exps.weight", 1280)
    for use in ({}, {"expert_count": 8}, {"expert_count": 4, "expert_used_count": 8}):
        assert facts(use, part) == (1280, 1280, 2560)


def test_what_sees_and_hears_is_no_part_of_a_token() -> None:
    parts = ("v.blk.0.attn_q.weight", 70), ("mm.0.weight", 7), ("blk.0.ffn_up.weight", 50)
    assert facts({}, *parts) == (127, 50, 100)


def test_a_file_says_the_same(tmp_path: Path) -> None:
    table = len(VOCABULARY) * SHAPE.n_embd
    path = write_llama(tmp_path / "m.gguf", tensors={"extra": np.zeros(8, np.float32)})
    found = read_metadata(path)
    assert found.n_active_parameters == found.n_parameters
    assert found.read_bytes == 4 * (found.n_parameters - table)
