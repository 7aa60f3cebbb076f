"""LoRA adapters: the target answers as if they had been merged into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specd.core import SpeculationMode
from specd.errors import LoadFailed
from tests.engine.llama.conftest import BATCH_INVARIANT, Engine, load
from tests.gguf_adapters import write_lora, write_merged
from tests.gguf_files import Shape, write_llama

GREEDY = {"temperature": 0.0, "n_predict": 48}
WIDER = Shape(n_embd=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("adapters") / "base.gguf")


@pytest.fixture(scope="module")
def one(base: Path) -> Path:
    return write_lora(base.with_name("one.gguf"), base)


def adapted(base: Path, *adapters: Path, drafter: Path | None = None) -> Engine:
    return load(base, drafter, adapters=tuple(map(str, adapters)), **BATCH_INVARIANT)


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-100])
    return path


@pytest.mark.contract("adapters.served")
def test_an_adapter_changes_the_answer_as_its_merged_weights_do(base: Path, one: Path) -> None:
    merged = adapted(write_merged(base.with_name("m1.gguf"), base, one))
    tuned = adapted(base, one)
    for prompt in ("the thing", "another", "in"):
        text = tuned.answer(prompt, **GREEDY)[0]
        assert text == merged.answer(prompt, **GREEDY)[0]
        assert text != adapted(base).answer(prompt, **GREEDY)[0]


def test_several_adapters_add_up(base: Path, one: Path) -> None:
    two = write_lora(base.with_name("two.gguf"), base, matrices=["blk.0.ffn_up.weight"], seed=2)
    merged = adapted(write_merged(base.with_name("m2.gguf"), base, one, two))
    both = adapted(base, one, two)
    assert both.answer("the thing", **GREEDY)[0] == merged.answer("the thing", **GREEDY)[0]
    alone = adapted(base, one)
    assert alone.answer("the thing", **GREEDY)[0] != both.answer("the thing", **GREEDY)[0]


def test_an_adapter_leaves_the_drafter_unchanged_and_is_lossless(base: Path, one: Path) -> None:
    tuned = adapted(base, one, drafter=base)
    bare = adapted(base, drafter=base)
    fixed = {"n_draft_max": 4, "mode": SpeculationMode.FIXED, "temperature": 0.5}
    accepted = []
    for engine in (tuned, bare):
        ends = []
        for seed in range(8):
            plain, _ = engine.answer("the thing", seed=seed, n_draft_max=0, temperature=0.5)
            drafted, end = engine.answer("the thing", seed=seed, **fixed)
            assert drafted == plain
            ends.append(end.speculation)
        accepted.append(sum(s.draft_n_accepted for s in ends) / sum(s.draft_n for s in ends))
    # Drafts of the bare weights are right about themselves, and less so about the adapted ones.
    assert 0 < accepted[0] < accepted[1]


def test_memory_of_an_adapter_is_counted(base: Path, one: Path) -> None:
    more = adapted(base, one).loaded.facts.target.total_bytes
    assert more > adapted(base).loaded.facts.target.total_bytes


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda p, base: p, "No such file"),
        (lambda p, base: write_llama(p), "adapter"),
        (lambda p, base: cut(write_lora(p, base)), "incomplete"),
        (lambda p, base: write_lora(p, base, architecture="qwen2"), "mismatch"),
        (lambda p, base: write_lora(p, base, kind="control"), "lora"),
        (lambda p, base: write_lora(p, write_llama(p.with_name("o"), shape=WIDER)), "shape"),
        (lambda p, base: write_lora(p, base, invocation=[1, 2]), "activated"),
    ],
    ids=["absent", "a model", "truncated", "architecture", "type", "other model", "alora"],
)
def test_a_damaged_adapter_is_refused_with_name_and_reason(
    tmp_path: Path, base: Path, write: Callable[[Path, Path], Path], reason: str
) -> None:
    path = write(tmp_path / "bad.gguf", base)
    with pytest.raises(LoadFailed, match=reason) as caught:
        adapted(base, path)
    assert path.name in str(caught.value)
