"""What a header says of memory: weights by layer, and what each layer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.store.architectures import RECURRENT, RECURRENT_OR_HYBRID
from specd.store.gguf import GgufHeader, TensorInfo, Value
from specd.store.kv_layout import LayerKv
from specd.store.shape import Shape, read_shape, shape_of
from tests.gguf_files import write_llama

ALL = LayerKv(key=128, value=128)
#: Of eight heads with 16 numbers in eight layers, two of them for keys.
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


def kv_layout(architecture: str, values: Mapping[str, Any] | None = None) -> list[LayerKv]:
    return [layer.kv_layout for layer in shape(architecture, values).layers]


def tensor(name: str, n_bytes: int, *dimensions: int) -> TensorInfo:
    return TensorInfo(name, "F32", dimensions, n_bytes)


# ------------------------------------------------------------------------------ weights


def test_weights_are_told_by_layer_input_and_output() -> None:
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
    assert [layer.weights_bytes for layer in found.layers] == [15, 7]
    assert (found.input_bytes, found.output_bytes, found.tied_bytes) == (100, 203, 0)
    assert (found.weights_bytes, found.n_vocab) == (325, 32000)


def test_without_an_output_the_embeddings_are_made_one() -> None:
    found = shape("llama", {}, tensor("token_embd.weight", 100, 128, 320))
    assert (found.input_bytes, found.output_bytes, found.tied_bytes) == (100, 0, 100)


def test_a_model_that_gives_no_logits_has_no_output() -> None:
    found = shape("bert", {}, tensor("token_embd.weight", 100, 128, 320))
    assert (found.tied_bytes, found.has_head, found.has_cache) == (0, False, False)


def test_layers_that_guess_ahead_are_left_in_the_file() -> None:
    tensors = [tensor(f"blk.{at}.attn_q.weight", 10) for at in range(8)]
    found = shape("glm4moe", {"nextn_predict_layers": 1}, *tensors)
    assert [layer.weights_bytes for layer in found.layers] == [10] * 7 + [0]
    assert found.layers[7].kv_layout == LayerKv()


def test_the_weights_of_a_file_are_its_tensors(tmp_path: Path) -> None:
    found = read_shape(write_llama(tmp_path / "x.gguf"))
    assert len(found.layers) == 2
    assert found.layers[0].weights_bytes == 4 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32)
    assert found.output_bytes == 4 * (found.n_vocab + 1) * 32


# -------------------------------------------------------------------------- what is kept


def test_keys_and_values_have_heads_of_their_own() -> None:
    assert set(kv_layout("llama")) == {LayerKv(key=32, value=32)}
    assert set(kv_layout("llama", {"attention.head_count_kv": 8})) == {ALL}
    wide = {"attention.key_length": 64, "attention.value_length": 32}
    assert set(kv_layout("qwen3", wide)) == {LayerKv(key=128, value=64)}


def test_each_layer_may_have_its_own_heads() -> None:
    found = kv_layout("deci", {"attention.head_count_kv": (2, 0, 1, 8, 8, 8, 8, 8)})
    assert found == [LayerKv(key=32, value=32), LayerKv(), LayerKv(key=16, value=16), *[ALL] * 5]


def test_a_latent_attention_keeps_keys_alone() -> None:
    values = {
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
    }
    assert set(kv_layout("deepseek2", values)) == {LayerKv(key=576, value=0)}
    index = kv_layout("deepseek32", {**values, "attention.indexer.key_length": 128})
    assert set(index) == {LayerKv(key=704, value=0)}
    # Files of old hold what is to be decompressed.
    assert set(kv_layout("deepseek2", {"attention.head_count_kv": 8})) == {ALL}


FOUR = {"attention.sliding_window": 64}
EACH = {
    **FOUR,
    "attention.sliding_window_pattern": (True, False, True, True, False, True, True, True),
}


@pytest.mark.parametrize(
    "architecture, values, windows",
    [
        ("gemma2", {}, [4096, 0] * 4),
        ("gemma2", FOUR, [64, 0] * 4),
        ("gemma3", {}, [0] * 8),
        ("gemma3", FOUR, [64] * 5 + [0] + [64] * 2),
        ("gemma3", {**FOUR, "attention.sliding_window_pattern": 2}, [64, 0] * 4),
        ("gpt-oss", FOUR, [64, 0] * 4),
        ("cohere2", FOUR, [64, 64, 64, 0] * 2),
        ("cohere2moe", FOUR, [0, 64, 64, 64] * 2),
        ("llama4", {}, [8192, 8192, 8192, 0] * 2),
        ("llama4", FOUR, [8192, 8192, 8192, 0] * 2),
        ("llama4", {"attention.sliding_window": 0}, [0] * 8),
        ("smallthinker", {}, [0] * 8),
        ("smallthinker", FOUR, [0, 4096, 4096, 4096] * 2),
        ("mimo2", EACH, [64, 0, 64, 64, 0, 64, 64, 64]),
        ("exaone4", FOUR, [0] * 8),
        ("phi3", FOUR, [0] * 8),
        ("llama", FOUR, [0] * 8),
        ("gemma3", {"attention.sliding_window": -5}, [0] * 8),
    ],
)
def test_which_layers_look_through_a_window(
    architecture: str, values: Mapping[str, Any], windows: list[int]
) -> None:
    assert [each.window for each in kv_layout(architecture, values)] == windows


def test_layers_with_a_window_may_have_heads_of_another_width() -> None:
    values = {
        **EACH,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.key_length_swa": 32,
        "attention.value_length_swa": 32,
        "attention.shared_kv_layers": 6,
    }
    found = kv_layout("gemma4", values)
    assert found[:2] == [LayerKv(key=64, value=64, window=64), LayerKv(key=128, value=128)]
    assert found[2:] == [LayerKv()] * 6


def test_gemma_3n_keeps_what_its_first_twenty_layers_see() -> None:
    found = kv_layout("gemma3n", {"block_count": 30, **FOUR})
    assert [each.key > 0 for each in found] == [True] * 20 + [False] * 10


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16}
MAMBA_2 = {**SSM, "ssm.group_count": 2, "ssm.state_size": 64}
#: A convolution's last three rows, and the state.
STATE_1, STATE_2 = 3 * 512 + 16 * 512, 3 * (512 + 2 * 2 * 64) + 64 * 512


def test_what_is_purely_recurrent_keeps_one_state() -> None:
    assert set(kv_layout("mamba", {**SSM, "attention.head_count": 0})) == {LayerKv(state=STATE_1)}
    assert set(kv_layout("mamba2", MAMBA_2)) == {LayerKv(state=STATE_2)}
    assert set(kv_layout("rwkv7", {"wkv.head_size": 64})) == {LayerKv(state=128 * (2 + 64))}


def test_hybrids_attend_where_they_have_heads_for_keys() -> None:
    values = {**MAMBA_2, "attention.head_count_kv": (0, 0, 8, 0, 0, 0, 8, 0)}
    expected = [LayerKv(state=STATE_2)] * 2 + [ALL] + [LayerKv(state=STATE_2)]
    for architecture in ("granitehybrid", "plamo2"):
        assert kv_layout(architecture, values) == expected * 2
    conv = {"attention.head_count_kv": (0, 8) * 4, "shortconv.l_cache": 3}
    assert kv_layout("lfm2", conv) == [LayerKv(state=256), ALL] * 4
    looking = [LayerKv(state=256), LayerKv(key=128, value=128, window=64)] * 4
    assert kv_layout("lfm2", {**conv, **FOUR}) == looking


def test_hybrids_attend_in_every_fourth_layer_or_as_the_file_says() -> None:
    attends = LayerKv(key=32, value=32)
    assert kv_layout("qwen3next", MAMBA_2) == ([LayerKv(state=STATE_2)] * 3 + [attends]) * 2
    halves = kv_layout("qwen35", {**MAMBA_2, "full_attention_interval": 2})
    assert halves == [LayerKv(state=STATE_2), attends] * 4
    said = {**MAMBA_2, "attention.recurrent_layers": (True,) + (False,) * 7}
    assert kv_layout("qwen35", said) == [LayerKv(state=STATE_2)] + [attends] * 7


def test_some_layers_do_both_and_some_neither() -> None:
    both = LayerKv(key=32, value=32, state=STATE_2)
    assert set(kv_layout("falcon-h1", MAMBA_2)) == {both}
    values = {
        **MAMBA_2,
        "attention.head_count_kv": (0, 8, 0, 0) * 2,
        "feed_forward_length": (0, 0, 64, 0) * 2,
    }
    state = LayerKv(state=STATE_2)
    assert kv_layout("nemotron_h", values) == [state, ALL, LayerKv(), state] * 2


def test_delta_attention_keeps_a_square_for_each_head() -> None:
    values = {"ssm.conv_kernel": 4, "kda.head_dim": 32, "attention.head_count_kv": (0, 1) * 4}
    assert kv_layout("kimi-linear", values)[0] == LayerKv(state=8 * 32 * (9 + 32))


@pytest.mark.parametrize(
    "architecture, is_recurrent, can_rewind",
    [
        ("llama", False, True),
        ("mamba", True, False),
        ("jamba", True, False),
        ("lfm2", True, True),
        ("deepseek4", True, True),
    ],
)
def test_which_states_can_be_taken_back(
    architecture: str, is_recurrent: bool, can_rewind: bool
) -> None:
    found = shape(architecture)
    assert (found.is_recurrent, found.can_rewind) == (is_recurrent, can_rewind)


def test_what_is_compressed_has_a_state_of_those_that_are_not_yet_enough() -> None:
    values = {
        "attention.key_length": 512,
        "attention.indexer.key_length": 128,
        "attention.compress_ratios": (0, 0, 4, 128, 4, 128, 4, 0),
    }
    states = [layer.state for layer in kv_layout("deepseek4", values)]
    assert states == [0, 0, 20480, 131072, 20480, 131072, 20480, 0]
    assert all(layer.key for layer in kv_layout("deepseek4", values))


#: What the states of any of them are told by.
OF_STATES: Mapping[str, Value] = {
    "attention.head_count_kv": (0, 2) * 4,
    "attention.key_length": 16,
    "attention.compress_ratios": (0, 4) * 4,
    "feed_forward_length": (0,) * 8,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
}


@pytest.mark.parametrize("architecture", sorted(RECURRENT_OR_HYBRID))
def test_all_that_llama_cpp_keeps_a_state_of_has_one_here(architecture: str) -> None:
    states = [layer.state for layer in kv_layout(architecture, OF_STATES)]
    assert any(states)
    assert all(states) == (architecture in RECURRENT | {"falcon-h1"})


def test_encoders_keep_nothing() -> None:
    assert set(kv_layout("nomic-bert")) == {LayerKv()}


# ------------------------------------------------------------------------- how wide it is


def test_widths_are_read_off_the_matrices() -> None:
    found = shape(
        "qwen2moe",
        {"expert_count": 60, "expert_used_count": 4, "feed_forward_length": 9999},
        tensor("blk.0.ffn_gate.weight", 1, 128, 700),
        tensor("blk.0.ffn_down.weight", 1, 700, 128),
        tensor("blk.1.ffn_down_exps.weight", 1, 90, 128, 60),
        tensor("blk.1.ffn_down_shexp.weight", 1, 300, 128),
    )
    assert (found.width.n_ff, found.width.is_gated, found.width.shares) == (700, True, True)
    assert found.experts is not None
    assert (found.experts.n_all, found.experts.n_used, found.experts.n_ff) == (60, 4, 90)


def test_a_gate_may_be_one_matrix_with_what_it_gates() -> None:
    down = tensor("blk.0.ffn_down.weight", 1, 300, 128)
    assert shape("phi3", {}, tensor("blk.0.ffn_up.weight", 1, 128, 600), down).width.is_gated
    assert not shape("gpt2", {}, tensor("blk.0.ffn_up.weight", 1, 128, 300), down).width.is_gated


NUMBERS = st.integers(-5, 70) | st.integers(-(2**40), 2**40) | st.booleans()
ARCHITECTURES = st.sampled_from(
    [
        "llama",
        "gemma3",
        "gemma4",
        "llama4",
        "jamba",
        "lfm2",
        "qwen35",
        "nemotron_h",
        "rwkv7",
        "bert",
        "kimi-linear",
        "minimax-01",
        "deepseek2",
        "falcon-h1",
        "smallthinker",
        "gargantua",
    ]
)
KEYS = st.sampled_from(
    [
        *PLAIN,
        "attention.key_length",
        "attention.key_length_mla",
        "attention.value_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.shared_kv_layers",
        "attention.recurrent_layers",
        "full_attention_interval",
        "feed_forward_length",
        "nextn_predict_layers",
        "shortconv.l_cache",
        "kda.head_dim",
        "wkv.head_size",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.group_count",
        "expert_count",
        "expert_used_count",
    ]
)


@given(
    architecture=ARCHITECTURES,
    values=st.dictionaries(KEYS, NUMBERS | st.lists(NUMBERS, max_size=9).map(tuple)),
)
def test_whatever_a_header_says_nothing_is_less_than_nothing(
    architecture: str, values: Mapping[str, Any]
) -> None:
    found = shape(architecture, values, tensor("token_embd.weight", 3, 5))
    for layer in found.layers:
        each = layer.kv_layout
        assert min(each.key, each.value, each.window, each.state, layer.weights_bytes) >= 0
    width = found.width
    numbers = (width.n_embd, width.query, width.latent, width.mixer, width.streams)
    assert min(*numbers, found.n_heads, found.n_ctx_train, found.tied_bytes) >= 0
