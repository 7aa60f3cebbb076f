"""Test padded models: the small model's text, and atomic files."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from specd.bench.padding import LlamaShape
from specd.bench.quantized_blocks import FileType
from specd.bench.subject import demo_subject
from specd.bench.synthetic import cached, parse_count, read_shape, write_synthetic
from specd.engine.sampler import Row
from specd.engine.slot import common_prefix
from specd.errors import StoreError
from tests.bench.small_llama import tensors, write_grouped_q8
from tests.engine.llama.conftest import Recorder, load
from tests.gguf_files import write_bad_magic, write_llama, write_mamba

BLOCK_BYTES = 34


# --------------------------------------------------------------------------- the same function


@dataclass(frozen=True)
class Answer:
    """A greedy text: tokens with the prompt's, and the row of logits of each token."""

    n_prompt: int
    tokens: list[int]
    rows: dict[int, Row]


def answers(weights: Path, *prompts: str) -> Iterator[Answer]:
    engine = load(weights, n_ctx=256)
    recorder = Recorder(engine.loaded.target)
    engine.loop.target = recorder
    for prompt in prompts:
        recorder.rows.clear()
        _, done = engine.answer(prompt, temperature=0.0, n_predict=48, want_context=True)
        rows = {position: row for (_, position), row in recorder.rows.items()}
        yield Answer(done.usage.n_prompt, list(done.context), rows)


def assert_same_or_near_tie(a: Answer, b: Answer, rounding: float) -> None:
    """Check that the first difference is a near tie.  rounding: its largest gap in logits."""
    n_same = common_prefix(a.tokens, b.tokens)
    for position in range(a.n_prompt - 1, min(n_same, len(a.tokens) - 1)):
        assert np.abs(a.rows[position] - b.rows[position]).max() < rounding
    if n_same < len(a.tokens):
        row_a, row_b = a.rows[n_same - 1], b.rows[n_same - 1]
        said_a, said_b = a.tokens[n_same], b.tokens[n_same]
        difference = float(np.abs(row_a - row_b).max())
        assert 0 <= row_a[said_a] - row_a[said_b] <= 2 * difference
        assert 0 <= row_b[said_b] - row_b[said_a] <= 2 * difference


# The large widths are 4 and 16 times the small ones: the norms' gains then change by powers of two,
# so that not even rounding differs and equal texts are no luck.


@pytest.mark.native
def test_the_padded_demo_target_gives_the_small_models_text(tmp_path: Path) -> None:
    small, large = demo_subject().target, tmp_path / "large.gguf"
    shape = write_synthetic(small, large, 125_000_000)
    assert shape.n_embd == 4 * 256
    (before,) = answers(small, "def binary_search(values, wanted):\n")
    (after,) = answers(large, "def binary_search(values, wanted):\n")
    large.unlink()  # pytest would keep it for three more runs
    assert after.tokens == before.tokens
    assert len(after.tokens) - after.n_prompt > 30
    assert_same_or_near_tie(before, after, rounding=1e-3)


@pytest.mark.native
@pytest.mark.parametrize("has_output", [True, False])
def test_grouped_heads_and_added_layers_change_nothing(tmp_path: Path, *, has_output: bool) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf", has_output=has_output)
    shape = write_synthetic(small, tmp_path / "large.gguf", 2_200_000)
    assert (shape.n_embd, shape.n_heads, shape.n_kv_heads) == (4 * 64, 16, 8)
    assert shape.n_layers > 2
    (before,) = answers(small, "the end")
    (after,) = answers(tmp_path / "large.gguf", "the end")
    assert len(after.tokens) - after.n_prompt == 48
    assert after.tokens == before.tokens
    assert_same_or_near_tie(before, after, rounding=1e-3)


@pytest.mark.native
@pytest.mark.parametrize("has_output", [True, False])
@pytest.mark.parametrize("file_type", [FileType.Q4_0, FileType.F16])
def test_in_another_type_the_first_difference_is_a_near_tie(
    tmp_path: Path, file_type: FileType, *, has_output: bool
) -> None:
    """The weights are the same, but sums and inputs are rounded differently."""
    small = write_grouped_q8(tmp_path / "small.gguf", has_output=has_output)
    large = tmp_path / "large.gguf"
    write_synthetic(small, large, 2_200_000, file_type=file_type)
    prompts = [f"{word} {i}" for i, word in enumerate(("the", "in", "an", "re", "on", "a"))]
    for before, after in zip(answers(small, *prompts), answers(large, *prompts), strict=True):
        assert_same_or_near_tie(before, after, rounding=0.5)


@pytest.mark.native
@pytest.mark.parametrize("file_type", [FileType.Q4_0, FileType.F16])
def test_the_demo_target_in_another_type_is_still_itself(
    tmp_path: Path, file_type: FileType
) -> None:
    small, large = demo_subject().target, tmp_path / "large.gguf"
    shape = write_synthetic(small, large, 60_000_000, file_type=file_type)
    assert 50_000_000 < shape.n_parameters < 70_000_000
    prompts = ("def binary_search(values, wanted):\n", "class Node:\n    def __init__(self")
    pairs = [*zip(answers(small, *prompts), answers(large, *prompts), strict=True)]
    large.unlink()
    for before, after in pairs:
        assert_same_or_near_tie(before, after, rounding=0.5)
        assert common_prefix(before.tokens, after.tokens) > before.n_prompt + 4


# --------------------------------------------------------------------------- the file


def test_the_small_models_blocks_are_kept_bit_for_bit(tmp_path: Path) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    write_synthetic(small, tmp_path / "large.gguf", 2_200_000)
    padded = tensors(tmp_path / "large.gguf")
    for name, tensor in tensors(small).items():
        if tensor.tensor_type.name == "Q8_0":
            n_rows, n_bytes = tensor.data.shape
            assert (padded[name].data[:n_rows, :n_bytes] == tensor.data).all(), name


def test_few_new_weights_are_zero(tmp_path: Path) -> None:
    """Zeros could be cheaper to read or to multiply on some hardware."""
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


@pytest.mark.parametrize("file_type", FileType)
def test_the_file_is_of_the_type_asked_for_and_says_what_is_not(
    tmp_path: Path, file_type: FileType
) -> None:
    small, large = write_grouped_q8(tmp_path / "small.gguf"), tmp_path / "large.gguf"
    write_synthetic(small, large, 20_000_000, file_type=file_type)
    said = gguf.GGUFReader(large)
    number = said.get_field("general.file_type").contents()
    assert gguf.LlamaFileType(number).name == f"MOSTLY_{file_type}"
    n_bytes: Counter[str] = Counter()
    for name, tensor in tensors(large).items():
        n_bytes[tensor.tensor_type.name] += int(tensor.n_bytes)
        if name.startswith("blk.") and not name.endswith("norm.weight"):
            assert tensor.tensor_type.name == file_type
    share = 100 * (1 - n_bytes[file_type] / n_bytes.total())
    assert f"{share:.2g} % of the bytes" in said.get_field("general.description").contents()
    assert share < 5


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
    assert cached(small, 2_200_000, file_type=FileType.F16) != first
    assert [path.suffix for path in first.parent.iterdir()] == [".gguf"] * 3


def test_another_source_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = {
        cached(write_grouped_q8(tmp_path / f"{has_output}", has_output=has_output), 2_200_000)
        for has_output in (True, False)
    }
    assert len(paths) == 2


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match=r"GB free, large.gguf takes"):
        write_synthetic(small, tmp_path / "to" / "large.gguf", 2_200_000)
    assert list((tmp_path / "to").iterdir()) == []


def test_an_unwritable_folder_gives_a_clear_error(tmp_path: Path) -> None:
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


# --------------------------------------------------------------------------- errors


def test_a_model_that_is_not_a_q8_0_llama_is_named_in_the_error(tmp_path: Path) -> None:
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


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        write_synthetic(tmp_path / "none.gguf", tmp_path / "large.gguf", 10**9)


@pytest.mark.parametrize(
    "text,count", [("1b", 10**9), ("1e9", 10**9), ("350M", 350_000_000), ("1.5B", 1_500_000_000)]
)
def test_a_number_of_parameters_may_have_a_suffix(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "b", "-1", "0", "1x", "1e999", "nan", "1..5"])
def test_an_invalid_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_count(text)


def test_the_demo_target_is_what_the_shapes_tests_say() -> None:
    target = demo_subject().target
    shape = read_shape(gguf.GGUFReader(target), target)
    assert shape == LlamaShape(
        n_embd=256, n_layers=6, n_ff=640, n_heads=4, n_kv_heads=4, head_dim=64, n_vocab=2048
    )
