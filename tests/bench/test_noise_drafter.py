"""Test the noise drafter: same size and cost, never right."""

from __future__ import annotations

import inspect
from pathlib import Path

import gguf
import numpy as np
import pytest

from specd.bench.quantized_blocks import FileType
from specd.bench.subject import demo_subject, noise_drafter
from specd.bench.synthetic import write_synthetic
from specd.core import TokenId
from specd.engine.backend import Backend, Batch
from specd.errors import StoreError
from tests.bench.small_llama import tensors, write_grouped_q8
from tests.engine.llama.conftest import load
from tests.gguf_files import SPECIAL_TOKENS, write_bad_magic

VOCABULARY_ROWS = {"token_embd.weight", "output.weight"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def guesses(backend: Backend, tokens: list[TokenId]) -> list[int]:
    """Return the most probable successor of each token, after all tokens before it."""
    found = []
    for start in range(0, len(tokens), 16):
        batch = Batch()
        for i, token in enumerate(tokens[start : start + 16]):
            batch.add(token, start + i, 0, wants_logits=True)
        backend.decode(batch)
        found += [int(backend.row(i).argmax()) for i in range(len(batch))]
    return found


@pytest.mark.native
def test_it_hardly_ever_guesses_what_the_target_says() -> None:
    subject = demo_subject()
    assert subject.drafter is not None
    target = load(subject.target, n_ctx=1024)
    text = inspect.getsource(inspect)[:2000]
    tokens = target.loaded.vocabulary.tokenize(text, add_bos=True)
    assert 300 < len(tokens) < 1024
    said = guesses(target.loaded.target, tokens)

    def agreement(drafter: Path) -> float:
        guessed = guesses(load(drafter, n_ctx=1024).loaded.target, tokens)
        return float(np.mean(np.array(said) == np.array(guessed)))

    assert agreement(subject.drafter) > 0.3
    assert agreement(noise_drafter(subject.drafter)) < 0.05


@pytest.mark.parametrize("has_output", [True, False])
@pytest.mark.parametrize("file_type", FileType)
def test_only_the_rows_of_the_vocabulary_change_their_order(
    tmp_path: Path, file_type: FileType, *, has_output: bool
) -> None:
    small = write_grouped_q8(tmp_path / "small.gguf", has_output=has_output)
    source = tmp_path / "source.gguf"
    write_synthetic(small, source, 2_200_000, file_type=file_type)
    noise = noise_drafter(source)
    assert noise.stat().st_size == source.stat().st_size
    before, after = tensors(source), tensors(noise)
    assert before.keys() == after.keys()
    for name in before.keys() - VOCABULARY_ROWS:
        assert (before[name].data == after[name].data).all(), name
    for name in before.keys() & VOCABULARY_ROWS:
        old, new = (t[name].data.reshape(len(t[name].data), -1) for t in (before, after))
        n_ordinary = len(old) - len(SPECIAL_TOKENS)
        assert not (old == new)[:n_ordinary].all(axis=1).any()
        assert (old[n_ordinary:] == new[n_ordinary:]).all()
        assert {row.tobytes() for row in old} == {row.tobytes() for row in new}


def test_its_metadata_is_the_sources_own(tmp_path: Path) -> None:
    source = write_grouped_q8(tmp_path / "small.gguf")
    before, after = (gguf.GGUFReader(path) for path in (source, noise_drafter(source)))
    assert [*before.fields] == [*after.fields]
    assert all(
        before.fields[key].contents() == after.fields[key].contents() for key in after.fields
    )


def test_a_second_use_finds_the_file_of_the_first_and_the_source_is_as_it_was(
    tmp_path: Path,
) -> None:
    source = write_grouped_q8(tmp_path / "small.gguf")
    contents = source.read_bytes()
    first = noise_drafter(source)
    written = first.stat()
    assert noise_drafter(source).stat() == written
    assert source.read_bytes() == contents
    assert [*first.parent.iterdir()] == [first]


def test_a_file_that_is_not_a_gguf_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"bad\.gguf: cannot be read as GGUF"):
        noise_drafter(write_bad_magic(tmp_path / "bad.gguf"))
    with pytest.raises(StoreError, match=r"none\.gguf: cannot be read as GGUF"):
        noise_drafter(tmp_path / "none.gguf")
