"""Check the memory shape of a header: weights per layer, and the widths of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specd.store.gguf import GgufHeader, TensorInfo, Value
from specd.store.shape import Shape, read_shape, shape_of
from tests.gguf_files import write_llama

#: Eight layers of eight heads with 16 elements; two heads for keys.
PLAIN: Mapping[str, Value] = {
    "block_count": 8,
    "embedding_length": 128,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}


def shape(
    architecture: str, values: Mapping[str, Any] | None = None, *tensors: TensorInfo
) -> Shape:
    own = {f"{architecture}.{key}": value for key, value in {**PLAIN, **(values or {})}.items()}
    return shape_of(GgufHeader(Path("x"), {"general.architecture": architecture, **own}, tensors))


def tensor(name: str, n_bytes: int, *dimensions: int) -> TensorInfo:
    return TensorInfo(name, "F32", dimensions, n_bytes)


# ------------------------------------------------------------------------------ weights


def test_weights_are_counted_per_layer_input_and_output() -> None:
    found = shape(
        "llama",
        {"block_count": 2},
        tensor("token_embd.weight", 100, 128, 32000),
        tensor("blk.0.attn_q.weight", 10),
        tensor("blk.0.ffn_up.weight", 5),
        tensor("blk.1.attn_q.weight", 7),
        tensor("output_norm.weight", 1),
        tensor("output.weight", 200),
        tensor("rope_freqs.weight", 2),
        tensor("v.blk.0.attn_q.weight", 1000),
        tensor("mm.0.weight", 1000),
    )
    assert found.layer_bytes == (15, 7)
    assert (found.input_bytes, found.output_bytes, found.tied_bytes) == (100, 203, 0)
    assert (found.weights_bytes, found.n_vocab) == (325, 32000)


def test_without_an_output_the_embeddings_are_the_output() -> None:
    found = shape("llama", {}, tensor("token_embd.weight", 100, 128, 320))
    assert (found.input_bytes, found.output_bytes, found.tied_bytes) == (100, 0, 100)


def test_a_model_without_logits_has_no_output() -> None:
    found = shape("bert", {}, tensor("token_embd.weight", 100, 128, 320))
    assert (found.tied_bytes, found.has_head) == (0, False)


def test_prediction_layers_are_not_loaded() -> None:
    tensors = [tensor(f"blk.{at}.attn_q.weight", 10) for at in range(8)]
    found = shape("glm4moe", {"nextn_predict_layers": 1}, *tensors)
    assert found.layer_bytes == (*[10] * 7, 0)


def test_the_weights_of_a_file_are_its_tensors(tmp_path: Path) -> None:
    found = read_shape(write_llama(tmp_path / "x.gguf"))
    assert len(found.layer_bytes) == 2
    assert found.layer_bytes[0] == 4 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32)
    assert found.output_bytes == 4 * (found.n_vocab + 1) * 32


# -------------------------------------------------------------------------------- widths


def widths(values: Mapping[str, Any]) -> tuple[int, int, int]:
    found = shape("llama", values)
    return found.n_key, found.n_value, found.n_query


def test_keys_and_values_have_separate_widths() -> None:
    assert widths({}) == (32, 32, 128)
    assert widths({"attention.head_count_kv": 8}) == (128, 128, 128)
    wide = {"attention.key_length": 64, "attention.value_length": 32}
    assert widths(wide) == (128, 64, 512)


def test_the_widest_layer_counts() -> None:
    assert widths({"attention.head_count_kv": (2, 0, 1, 8, 8, 8, 8, 8)}) == (128, 128, 128)
    assert widths({"attention.key_length_swa": 32}) == (64, 64, 256)


def test_the_inner_width_is_the_matrices_or_the_used_experts() -> None:
    experts = {"expert_count": 60, "expert_used_count": 4, "feed_forward_length": 9999}
    down = tensor("blk.0.ffn_down.weight", 1, 300, 128)
    expert = tensor("blk.1.ffn_down_exps.weight", 1, 90, 128, 60)
    assert shape("qwen2moe", experts, down).n_ff == 300
    assert shape("qwen2moe", experts, down, expert).n_ff == 360


def test_architectures_with_states_windows_and_biases_are_recognized() -> None:
    plain, window = shape("llama"), shape("gemma3", {"attention.sliding_window": 512})
    assert (plain.is_recurrent, plain.has_window, plain.has_bias) == (False, False, False)
    assert window.has_window
    assert shape("mamba").is_recurrent
    assert shape("t5", {"attention.relative_buckets_count": 32}).has_bias


NUMBERS = st.integers(-5, 70) | st.integers(-(2**40), 2**40) | st.booleans()
ARCHITECTURES = st.sampled_from(["llama", "gemma3", "lfm2", "rwkv7", "bert", "deepseek2", "x"])
KEYS = st.sampled_from(
    [
        *PLAIN,
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_swa",
        "attention.sliding_window",
        "attention.relative_buckets_count",
        "context_length",
        "nextn_predict_layers",
        "expert_used_count",
    ]
)


@given(
    architecture=ARCHITECTURES,
    values=st.dictionaries(KEYS, NUMBERS | st.lists(NUMBERS, max_size=9).map(tuple)),
)
def test_invalid_numbers_make_no_size_negative(
    architecture: str, values: Mapping[str, Any]
) -> None:
    found = shape(architecture, values, tensor("token_embd.weight", 3, 5))
    assert min(found.layer_bytes, default=0) >= 0
    assert all(size >= 0 for size in astuple(found) if isinstance(size, int))
