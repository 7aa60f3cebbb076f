"""A padded model says what the small one says, and is written whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specd import core
from specd.bench import synthetic
from specd.bench.runs import engine_process
from specd.bench.shape import Shape
from specd.bench.subject import demo_subject
from specd.bench.synthetic import cached, parse_count, read_shape, write_synthetic
from specd.errors import StoreError
from tests.gguf_files import MERGES, write_bad_magic, write_llama, write_mamba

BLOCK_BYTES = 34


def write_grouped_q8(path: Path, *, has_output: bool = True, dropped: str = "") -> Path:
    """A random llama in Q8_0 whose 4 heads share 2 key-value heads; width 64, 2 layers."""
    random = np.random.default_rng(7)
    donor = gguf.GGUFReader(write_llama(path.with_suffix(".donor")))
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in donor.fields.items():
        if key.startswith("tokenizer."):
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
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


async def answer(weights: Path, prompt: str) -> tuple[str, list[float]]:
    """Greedy text and the log-probabilities of its tokens, through a real engine process."""
    spec = core.EngineSpec(weights=str(weights), n_ctx=256, n_threads=1, n_gpu_layers=0)
    request = core.EngineRequest(
        prompt=(prompt,),
        sampling=core.SamplingParams(temperature=0.0),
        n_predict=48,
        n_logprobs=0,
        n_draft_max=0,
    )
    text, logprobs = "", []
    async with engine_process(spec) as (engine, _), aclosing(engine.generate(request)) as events:
        async for event in events:
            assert not isinstance(event, core.Failed), event.message
            if isinstance(event, core.Token):
                text += event.text
                logprobs += [entry.logprob for entry in event.logprobs]
    return text, logprobs


# --------------------------------------------------------------------------- the same function

# The large widths are 4 and 16 times the small ones: the norms' gains then change by powers of two,
# so that not even rounding differs and equal texts are no luck.


@pytest.mark.native
async def test_the_padded_demo_target_says_what_the_small_one_says(tmp_path: Path) -> None:
    small, large = demo_subject().target, tmp_path / "large.gguf"
    shape = write_synthetic(small, large, 125_000_000)
    assert shape.n_embd == 4 * 256
    text, logprobs = await answer(small, "def binary_search(values, wanted):\n")
    large_text, large_logprobs = await answer(large, "def binary_search(values, wanted):\n")
    large.unlink()  # pytest would keep it for three more runs
    assert text == large_text
    assert len(logprobs) > 30
    assert large_logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.native
@pytest.mark.parametrize("has_output", [True, False])
async def test_grouped_heads_and_added_layers_change_nothing(
    tmp_path: Path, *, has_output: bool
) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf", has_output=has_output)
    shape = write_synthetic(small, tmp_path / "large.gguf", 2_200_000)
    assert (shape.n_embd, shape.n_heads, shape.n_kv_heads) == (4 * 64, 16, 8)
    assert shape.n_layers > 2
    text, logprobs = await answer(small, "the end")
    large_text, large_logprobs = await answer(tmp_path / "large.gguf", "the end")
    assert len(logprobs) == 48
    assert text == large_text
    assert large_logprobs == pytest.approx(logprobs, abs=1e-3)


# --------------------------------------------------------------------------- the file


def test_the_small_models_blocks_are_kept_bit_for_bit(tmp_path: Path) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    write_synthetic(small, tmp_path / "large.gguf", 2_200_000)
    padded = tensors(tmp_path / "large.gguf")
    for name, tensor in tensors(small).items():
        if tensor.tensor_type.name == "Q8_0":
            n_rows, n_bytes = tensor.data.shape
            assert (padded[name].data[:n_rows, :n_bytes] == tensor.data).all(), name


def test_hardly_a_new_weight_is_zero(tmp_path: Path) -> None:
    """Zeros could be cheaper to read or to multiply, somewhere."""
    small = write_grouped_q8(tmp_path / "small.gguf")
    write_synthetic(small, tmp_path / "large.gguf", 20_000_000)
    zeros = total = 0
    for name, tensor in tensors(tmp_path / "large.gguf").items():
        if tensor.tensor_type.name == "Q8_0" and name.startswith("blk."):
            blocks = tensor.data.reshape(-1, BLOCK_BYTES)
            zeros += int((blocks == 0).all(axis=1).sum())
            total += len(blocks)
    assert zeros / total < 0.05


def test_tokenizer_and_template_are_copied_and_the_name_says_synthetic(tmp_path: Path) -> None:
    small = demo_subject().target
    large = write_synthetic(small, tmp_path / "large.gguf", 30_000_000)
    before, after = gguf.GGUFReader(small), gguf.GGUFReader(tmp_path / "large.gguf")
    for key, field in before.fields.items():
        if key.startswith("tokenizer."):
            copy = after.get_field(key)
            assert copy.contents() == field.contents(), key
            assert copy.types == field.types, key
    assert "synthetic" in after.get_field("general.name").contents()
    assert read_shape(after, small) == large


def test_the_same_source_gives_the_same_file(tmp_path: Path) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    digests = set()
    for name in ("a", "b"):
        write_synthetic(small, tmp_path / name, 2_200_000)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_progress_ends_at_one(tmp_path: Path) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    heard: list[float] = []
    write_synthetic(small, tmp_path / "large.gguf", 2_200_000, heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


# --------------------------------------------------------------------------- the cache


def test_a_second_use_finds_the_file_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = write_grouped_q8(tmp_path / "small.gguf")
    first = cached(small, 2_200_000)
    written = first.stat()
    assert first.is_relative_to(tmp_path / "cache" / "specd" / "bench")
    assert cached(small, 2_200_000).stat() == written
    assert cached(small, 4_000_000) != first
    assert [path.suffix for path in first.parent.iterdir()] == [".gguf"] * 2


def test_another_source_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = {
        cached(write_grouped_q8(tmp_path / f"{has_output}", has_output=has_output), 2_200_000)
        for has_output in (True, False)
    }
    assert len(paths) == 2


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match="GB free, the synthetic model takes"):
        write_synthetic(small, tmp_path / "to" / "large.gguf", 2_200_000)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written: "):
        write_synthetic(small, tmp_path / "file" / "large.gguf", 2_200_000)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    small = write_grouped_q8(tmp_path / "small.gguf")
    with pytest.raises(KeyboardInterrupt):
        write_synthetic(small, tmp_path / "to" / "large.gguf", 2_200_000, interrupt)
    assert list((tmp_path / "to").iterdir()) == []


# --------------------------------------------------------------------------- what is refused


def test_a_model_that_is_no_q8_0_llama_is_refused_by_name(tmp_path: Path) -> None:
    refused = {
        "only a llama can be padded": write_mamba(tmp_path / "mamba.gguf"),
        "must be Q8_0, it is F32": write_llama(tmp_path / "f32.gguf"),
        "cannot be read as GGUF": write_bad_magic(tmp_path / "bad.gguf"),
        "the weight blk.0.attn_k.weight is missing": write_grouped_q8(
            tmp_path / "holed.gguf", dropped="attn_k"
        ),
    }
    for words, source in refused.items():
        with pytest.raises(StoreError, match=words) as error:
            write_synthetic(source, tmp_path / "large.gguf", 2_200_000)
        assert str(source) in str(error.value)
    assert not (tmp_path / "large.gguf").exists()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        write_synthetic(tmp_path / "none.gguf", tmp_path / "large.gguf", 10**9)


@pytest.mark.parametrize(
    "text,count", [("1b", 10**9), ("1e9", 10**9), ("350M", 350_000_000), ("1.5B", 1_500_000_000)]
)
def test_a_count_of_parameters_is_read_as_people_write_it(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "b", "-1", "0", "1x", "1e999", "nan", "1..5"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_count(text)


def test_the_module_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    synthetic._main(small, tmp_path / "large.gguf", "2.2m")
    assert "M parameters, " in capsys.readouterr().out


def test_the_demo_target_is_what_the_shapes_tests_say() -> None:
    target = demo_subject().target
    shape = read_shape(gguf.GGUFReader(target), target)
    assert shape == Shape(
        n_embd=256, n_layers=6, n_ff=640, n_heads=4, n_kv_heads=4, head_dim=64, n_vocab=2048
    )
