"""Loading: facts of a valid pair, errors for damaged files, plain decoding without a drafter."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from specd.core import Done, EngineSpec, FailureKind, NoPair, SpeculationMode, StopReason
from specd.engine.backend import Batch, DecodeFailed
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.cost_model import CostModel
from specd.errors import LoadFailed, OutOfMemory
from specd.ipc.messages import Finished
from specd.runner import Process
from tests import gguf_files
from tests.engine.llama.conftest import BATCH_INVARIANT, DRAFTER, TARGET, Engine, load, request

_WITH_6_GIB = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
runpy.run_module("specd.engine", run_name="__main__")
"""


def test_facts_of_the_demo_pair(demo: Engine) -> None:
    facts = demo.loaded.facts
    assert facts.n_ctx == 512
    assert facts.drafter is not None
    assert facts.target.device == facts.drafter.device == "CPU"
    # Weights and cache of each are counted, and a CPU holds none of it in video memory.
    assert facts.target.total_bytes > TARGET.stat().st_size
    assert facts.target.total_bytes > facts.drafter.total_bytes
    assert facts.target.vram_bytes == facts.drafter.vram_bytes == 0
    assert facts.plain_tokens_per_s > 0
    at_load = CostModel(dict(facts.costs.target_s), facts.costs.draft_step_s)
    assert facts.threshold == at_load.break_even(MAX_DRAFT)


def test_the_context_is_limited_to_the_training_length() -> None:
    engine = load(TARGET, n_ctx=1_000_000)
    assert engine.loaded.facts.n_ctx == engine.loaded.facts.n_ctx_train


def test_an_invalid_training_length_limits_nothing(tmp_path: Path) -> None:
    endless = gguf_files.write_llama(
        tmp_path / "endless.gguf", shape=replace(gguf_files.SHAPE, n_ctx=2**31)
    )
    facts = load(endless, n_ctx=64).loaded.facts
    assert (facts.n_ctx, facts.n_ctx_train) == (64, 0)


@pytest.mark.contract("sched.oom")
async def test_a_cache_without_memory_raises_out_of_memory(tmp_path: Path) -> None:
    """8 GiB of it, in a process that may have 6."""
    shape = replace(gguf_files.SHAPE, n_layer=128, n_ctx=2**18)
    path = gguf_files.write_llama(tmp_path / "deep.gguf", shape=shape)
    spec = EngineSpec(weights=str(path), n_ctx=shape.n_ctx, n_threads=1, kv_cache_type="f32")
    process = Process(spec, command=(sys.executable, "-c", _WITH_6_GIB))
    try:
        with pytest.raises(OutOfMemory, match=r"deep\.gguf: .*(allocate|bad_alloc)"):
            await process.ready()
    finally:
        process.stop()
        await process.ended()


def files_of(process: Process) -> set[str]:
    """Return the names of the files that the process has mapped."""
    return {Path(part.path).name for part in psutil.Process(process.pid).memory_maps()}


async def test_a_drafter_without_memory_is_omitted_and_freed(
    tmp_path: Path,
) -> None:
    """Its cache would be 8 GiB, in a process that may have 6; that of its target is 128 MiB."""
    shallow, deep = (replace(gguf_files.SHAPE, n_layer=n, n_ctx=2**18) for n in (2, 128))
    target = gguf_files.write_llama(tmp_path / "shallow.gguf", shape=shallow)
    drafter = gguf_files.write_llama(tmp_path / "deep.gguf", shape=deep)
    spec = EngineSpec(
        weights=str(target),
        drafter=str(drafter),
        n_ctx=shallow.n_ctx,
        n_threads=1,
        kv_cache_type="f32",
    )
    process = Process(spec, command=(sys.executable, "-c", _WITH_6_GIB))
    try:
        facts = await process.ready()
        assert (facts.drafter, facts.no_pair_reason) == (None, NoPair.NO_VRAM)
        assert re.search(r"deep\.gguf: .*(allocate|bad_alloc)", facts.no_pair_detail)
        mapped = files_of(process)
        assert target.name in mapped
        assert drafter.name not in mapped
        *_, done = [event async for event in process.client.generate(request("hello", n_predict=4))]
        assert isinstance(done, Done)
        assert done.speculation.reason == NoPair.NO_VRAM
    finally:
        process.stop()
        await process.ended()


@pytest.mark.parametrize(
    "write, reason",
    [
        (lambda p: gguf_files.write_truncated(gguf_files.write_llama(p)), "corrupted|incomplete"),
        (gguf_files.write_bad_magic, "magic"),
        (gguf_files.write_huge_counts, "."),
        (gguf_files.write_unknown_architecture, "unknown model architecture"),
        (lambda p: p.with_name("absent.gguf"), "."),
    ],
    ids=["truncated", "magic", "counts", "architecture", "absent"],
)
def test_a_damaged_file_is_refused_with_name_and_reason(
    tmp_path: Path, write: Callable[[Path], Path], reason: str
) -> None:
    path = write(tmp_path / "bad.gguf")
    with pytest.raises(LoadFailed, match=reason) as caught:
        load(path)
    assert path.name in str(caught.value)


def test_a_damaged_drafter_is_omitted_with_the_reason(tmp_path: Path) -> None:
    bad = gguf_files.write_truncated(gguf_files.write_llama(tmp_path / "bad.gguf"))
    engine = load(TARGET, bad)
    stats = engine.answer("def f(", n_predict=8)[1].speculation
    assert stats.drafter == "prompt lookup"
    assert stats.reason == NoPair.LOAD_FAILED
    assert "bad.gguf" in stats.detail


def test_a_recurrent_model_is_decoded_plainly_with_the_reason(tmp_path: Path) -> None:
    mamba = gguf_files.write_mamba(tmp_path / "mamba.gguf")
    engine = load(mamba, mamba)
    first, done = engine.answer("hello", n_predict=12, seed=1)
    assert done.speculation.reason == NoPair.CANNOT_REWIND
    # Its state cannot be cut back to a prefix: a second request must start afresh, not fail.
    engine.answer("help", n_predict=5)
    assert engine.answer("hello", n_predict=12, seed=1)[0] == first


def test_a_padded_vocabulary_never_drafts_unknown_ids(
    tmp_path: Path,
) -> None:
    vocabulary = gguf_files.byte_vocabulary()
    target = gguf_files.write_llama(tmp_path / "t.gguf", vocabulary=vocabulary)
    drafter = gguf_files.write_llama(
        tmp_path / "d.gguf", vocabulary=vocabulary.with_padding(64), seed=5
    )
    engine = load(target, drafter)
    plan = {"seed": 3, "temperature": 1.5, "top_k": 0, "top_p": 1.0}
    text, done = engine.answer("the thing", mode=SpeculationMode.FIXED, **plan)
    assert done.speculation.draft_n > 0
    assert engine.answer("the thing", n_draft_max=0, **plan)[0] == text


@pytest.mark.parametrize("mode", SpeculationMode)
def test_the_pairs_longest_draft_limits_drafts_and_outputs(mode: SpeculationMode) -> None:
    engine = load(TARGET, DRAFTER, n_slots=2, max_draft=3)
    _, done = engine.answer("def f(", seed=2, n_predict=60, mode=mode, n_draft_max=8)
    deepest = len(done.speculation.drafted_per_depth)
    # In automatic mode, this machine's measured costs decide whether it drafts.
    assert deepest <= 3 if mode == SpeculationMode.AUTO else deepest == 3
    assert max(width for width, _ in engine.loaded.facts.costs.target_s) == 4
    batch = Batch()
    for position in range(9):
        batch.add(5, position, 0, wants_logits=True)
    # Two slots of four rows each; llama.cpp would end the process over the ninth.
    engine.loaded.target.rewind(0, 0)
    with pytest.raises(DecodeFailed, match="does not fit"):
        engine.loaded.target.decode(batch)
    batch.wants_logits[0] = False
    engine.loaded.target.decode(batch)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_invalid_token_id_is_refused_and_the_engine_continues(demo: Engine, token: int) -> None:
    demo.said.clear()
    demo.loop.submit(9, request(("def f(", token)))
    end = demo.said[-1]
    assert isinstance(end, Finished)
    assert getattr(end.event, "kind", None) is FailureKind.INVALID
    assert demo.answer("def f(", n_predict=4)[1].usage.n_generated > 0


def test_all_kinds_of_text_survive_the_tokenizer(demo: Engine) -> None:
    vocabulary = demo.loaded.vocabulary
    for text in ("def f():\n\treturn 1\r\n", "naïve 漢字 🙂👩‍👩‍👧", "   \n\n\t ", "a" * 5000):
        tokens = vocabulary.tokenize(text, add_bos=False)
        assert b"".join(map(vocabulary.piece, tokens)).decode() == text


@pytest.mark.contract("shift")
def test_a_long_answer_shifts_its_context_and_continues(demo: Engine) -> None:
    engine = load(TARGET, n_ctx=256)
    _, done = engine.answer("x = 1\n" * 60, n_predict=300, temperature=1.0, top_k=0)
    assert done.usage.n_prompt < 256
    assert done.reason in {StopReason.LENGTH, StopReason.STOP}
    assert done.usage.n_generated > 10


@pytest.mark.contract("shift")
def test_a_requested_context_equals_a_loaded_context() -> None:
    """A prompt that is cut, one that shifts with drafts, and one that may do neither."""
    exact: dict[str, Any] = BATCH_INVARIANT
    small, large = (load(TARGET, DRAFTER, n_ctx=n, **exact) for n in (128, 512))
    code = "def walk(top, seen):\n    for name in top:\n        "
    cases: list[tuple[str, dict[str, Any]]] = [
        (code, {"n_predict": 200, "temperature": 1.0}),
        (code * 12, {"n_predict": 120, "temperature": 1.0}),
        (code, {"n_predict": -1, "temperature": 1.0, "top_k": 0, "shift": False}),
    ]
    for prompt, fields in cases:
        expected, ended = small.answer(prompt, seed=7, n_draft_max=0, want_context=True, **fields)
        assert ended.usage.n_prompt + ended.usage.n_generated >= 128, "the context was full"
        for n_draft in (0, 4, None):
            fields |= {"n_draft_max": n_draft, "n_ctx": 128}
            text, done = large.answer(prompt, seed=7, want_context=True, **fields)
            assert text == expected
            assert (done.reason, done.context) == (ended.reason, ended.context)
            assert done.usage.n_prompt == ended.usage.n_prompt


def test_a_second_turn_evaluates_only_new_tokens(demo: Engine) -> None:
    _, first = demo.answer("def walk(top):\n    ", n_predict=20, want_context=True)
    _, second = demo.answer((*first.context, "\n    return 7"), n_predict=4)
    assert second.usage.n_cached >= len(first.context) - 1
