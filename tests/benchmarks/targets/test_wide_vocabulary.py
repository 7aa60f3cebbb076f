"""Test the wide pair: it loads fast, accepts its drafts and writes valid text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.targets.wide_vocabulary import N_VOCAB, wide_vocabulary_pair
from specd.bench.subject import demo_subject
from specd.core import SpeculationMode, StopReason
from specd.errors import StoreError
from tests.engine.llama.conftest import Engine, load
from tests.gguf_files import write_bad_magic


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield wide_vocabulary_pair(demo_subject().target)


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path]) -> Engine:
    return load(*pair)


def test_a_second_use_finds_the_files_of_the_first(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pair[0].parents[2]))
    written = [path.stat() for path in pair]
    again = wide_vocabulary_pair(demo_subject().target)
    assert again == pair
    assert [path.stat() for path in again] == written
    assert max(status.st_size for status in written) < 25_000_000


@pytest.mark.native
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nearly_every_draft_is_accepted(engine: Engine, temperature: float) -> None:
    assert engine.loaded.facts.n_vocab == N_VOCAB == 131_072
    fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED}
    _, done = engine.answer("def f(", temperature=temperature, seed=1, n_predict=200, **fixed)
    assert done.usage.n_generated == 200
    assert done.speculation.draft_n > 100
    assert done.speculation.draft_n_accepted > 0.9 * done.speculation.draft_n


@pytest.mark.native
@pytest.mark.parametrize("prompt", ["def f(", "<|user|>hello<|end|>", "naïve 漢字", "<|unused_7|>"])
def test_the_text_is_ascii_and_ends_only_where_it_is_cut(engine: Engine, prompt: str) -> None:
    text, done = engine.answer(prompt, temperature=1.0, seed=2, n_predict=300, want_context=True)
    assert done.reason is StopReason.LENGTH
    assert text.isascii()
    assert text.isprintable()
    # Every token has a text, and no token occurs twice.
    said = done.context[-300:]
    assert len(set(said)) == 300
    assert all(engine.loaded.vocabulary.piece(token) for token in said)


def test_a_donor_that_is_not_a_gguf_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"bad\.gguf: cannot be read as GGUF"):
        wide_vocabulary_pair(write_bad_magic(tmp_path / "bad.gguf"))
