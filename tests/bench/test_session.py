"""Test a whole bench of the demo pair with real engines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from specd.bench.config import BenchConfig
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.peer import PeerBinary
from specd.bench.report import to_json
from specd.bench.session import BenchStep, run_bench
from specd.core import SpeculationState
from specd.errors import InvalidRequest
from specd.settings import Settings
from tests.gguf_files import write_llama

pytestmark = pytest.mark.native


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Settings()


async def test_the_demo_pair_is_benched_from_load_to_report(settings: Settings) -> None:
    config = BenchConfig(
        model="specd-demo",
        workloads=("code_completion", "json", "hostile"),
        n_prompts=2,
        n_tokens=20,
        temperatures=(0.0, 0.8),
        draft_lengths=(2,),
        streams=(1, 2),
        n_threads=1,
        n_gpu_layers=0,
    )
    heard: list[BenchStep] = []
    subject = config.subject(settings, lambda _: None)
    report = await run_bench(config, subject, settings, heard.append)

    run_sets = config.run_sets(subject)
    assert len(report.runs) == sum(map(len, run_sets)) == 2 * (4 * 3 + 2 * 3 + 6 * 2)
    assert [step.run for step in heard] == [None, *report.runs]
    assert heard[0].done_s == 0.0
    assert heard[-1].done_s == pytest.approx(heard[0].total_s)
    assert [(c.streams, c.temperature, c.workload) for c in report.comparisons[::2]] == [
        (1, 0.0, "code_completion"),
        (1, 0.8, "code_completion"),
        (2, 0.0, "mixed"),
        (1, 0.0, "hostile"),
    ]
    fixed = Mode.fixed(2)
    for run in report.runs:
        assert run.mode in {PLAIN, fixed, AUTO}
        if run.mode == PLAIN:
            assert run.state == SpeculationState.OFF
        if run.mode == fixed:
            assert sum(run.drafted_per_depth) == run.n_drafted > 0
        if run.streams == 1:
            assert run.n_cached < 8
            assert run.native_s is not None
    assert len(report.mixes) == 4
    assert report.engine.costs.target_s
    assert to_json(report)["subject"]["drafter"]


async def test_a_model_without_a_drafter_is_benched_with_plain_and_auto(
    settings: Settings, tmp_path: Path
) -> None:
    config = BenchConfig(
        target=write_llama(tmp_path / "alone.gguf"),
        workloads=("code_completion", "hostile"),
        n_tokens=20,
        temperatures=(0.0,),
        n_threads=1,
        n_gpu_layers=0,
    )
    report = await run_bench(config, config.subject(settings, lambda _: None), settings)
    (comparison,) = report.comparisons
    assert [figures.mode for figures in comparison.modes] == [PLAIN, AUTO]
    assert report.workloads == ("code_completion",)
    assert comparison.overhead_ms is not None
    assert comparison.overhead_ms.low > 0


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="no wheel with a server here")
async def test_a_peer_answers_the_same_prompts_beside_the_engine(settings: Settings) -> None:
    config = BenchConfig(
        model="specd-demo",
        workloads=("code_completion",),
        n_tokens=20,
        temperatures=(0.0,),
        draft_lengths=(2,),
        peer=PeerBinary.find(),
        peer_lengths=(2,),
        n_threads=1,
        n_gpu_layers=0,
    )
    report = await run_bench(config, config.subject(settings, lambda _: None), settings)
    runs = {(run.mode, run.prompt): run for run in report.runs}
    for prompt in range(2):
        # The same work, so that the times can be compared.  The peer has kernels of its own, so the
        # texts may part at a near tie.
        ours, theirs = runs[PLAIN, prompt], runs[PEER_PLAIN, prompt]
        assert ours.n_prompt == theirs.n_prompt
        assert ours.n_generated == theirs.n_generated == 20
        assert ours.texts[0][:10] == theirs.texts[0][:10]
    drafted = {run.n_drafted > 0 for run in report.runs if run.mode == Mode.peer_draft(2)}
    assert drafted == {True}
    (mix,) = report.mixes
    assert mix.plain_to_peer_plain is not None
    assert mix.single_peer == Mode.peer_draft(2)


async def test_a_drafter_that_does_not_load_ends_the_bench(
    settings: Settings, tmp_path: Path
) -> None:
    torn = write_llama(tmp_path / "torn.gguf")
    torn.write_bytes(torn.read_bytes()[:-2000])
    config = BenchConfig(model="specd-demo", drafter=torn, n_threads=1, n_gpu_layers=0)
    subject = config.subject(settings, lambda _: None)
    with pytest.raises(InvalidRequest, match="left the drafter out"):
        await run_bench(config, subject, settings)


async def test_a_drafter_that_cannot_be_made_useless_gives_a_note(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("no folder")
    config = BenchConfig(
        model="specd-demo",
        workloads=("code_completion", "hostile"),
        n_tokens=20,
        temperatures=(0.0,),
        draft_lengths=(),
        n_threads=1,
        n_gpu_layers=0,
    )
    subject = config.subject(settings, lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    report = await run_bench(config, subject, settings)
    assert {run.workload for run in report.runs} == {"code_completion"}
    assert "no useless drafter can be made" in report.notes[0]
