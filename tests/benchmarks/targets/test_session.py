"""Test the measurements of the targets on the demo pair, with small sizes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.output_equality import prompts, sameness
from benchmarks.targets.sampling_check import run_sampling_check
from benchmarks.targets.second_turn import second_turns
from benchmarks.targets.session import Progress, SampleSizes, run_targets, stream_run_sets
from benchmarks.targets.verdict import Outcome
from specd.bench.config import BenchConfig
from specd.bench.subject import demo_subject
from specd.bench.workload import Renderer
from specd.settings import Settings

TINY = SampleSizes(
    n_stream_tokens=10,
    n_rounds=1,
    n_round_tokens=16,
    n_same=4,
    n_same_tokens=24,
    n_draws=300,
    estimate_s=5.0,
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Settings()


def test_there_are_two_hundred_prompts_and_no_two_alike() -> None:
    texts = [*islice(prompts(Renderer.of(demo_subject().target)), 200)]
    assert len(set(texts)) == 200


def test_several_streams_compare_auto_with_both_ways_of_the_peer(settings: Settings) -> None:
    config = BenchConfig(model="specd-demo", workloads=("json", "chat", "hostile"))
    run_sets = stream_run_sets(config, config.subject(settings, lambda _: None), TINY)
    assert [run_set.streams for run_set in run_sets] == [4, 8]
    assert all(len(run_set.groups) >= 2 and not run_set.hostile for run_set in run_sets)
    assert all([mode.name for mode in run_set.modes] == ["plain", "auto"] for run_set in run_sets)


@pytest.mark.native
async def test_texts_are_the_same_and_drafts_were_tried() -> None:
    heard: list[None] = []
    found = await sameness(demo_subject(), 6, 32, lambda: heard.append(None))
    assert len(heard) == 6
    assert [(each.n_prompts, each.n_same, each.different) for each in found] == [(3, 3, ())] * 2
    assert all(each.n_accepted for each in found)


@pytest.mark.native
async def test_draws_with_drafts_follow_the_rows_of_the_target() -> None:
    found = await run_sampling_check(demo_subject(), 0.8, 1000)
    assert found.n_draws >= 1000
    assert found.n_accepted > 100
    assert found.n_impossible == 0
    assert found.n_free > 20
    assert found.p_value > 0.001


@pytest.mark.native
async def test_a_second_turn_reads_no_more_than_what_is_new() -> None:
    for turn in await second_turns(demo_subject()):
        assert 0 < turn.n_evaluated <= turn.n_new < turn.n_prompt / 2


@pytest.mark.native
@pytest.mark.timeout(180)
async def test_all_measurements_run_and_are_judged(settings: Settings) -> None:
    config = BenchConfig(
        model="specd-demo",
        workloads=("json", "code_completion", "hostile"),
        n_prompts=1,
        n_tokens=16,
        temperatures=(0.0,),
        draft_lengths=(3,),
        n_threads=1,
        n_gpu_layers=0,
    )
    heard: list[Progress] = []
    subject = config.subject(settings, lambda _: None)
    found = await run_targets(config, settings, subject, TINY, ("a command",), heard.append)
    outcomes = {each.number: each.outcome for each in judge(Findings.of_json(found.to_json()))}
    # Without a peer there is nothing to compare with.
    assert {n for n, each in outcomes.items() if each is Outcome.UNKNOWN} == {1, 2, 3, 7}
    assert outcomes[10] is Outcome.PASS
    assert {run.streams for run in found.report.runs} == {1, 4, 8}
    assert [each.slots for each in found.rounds] == [1] * 4 + [8] * 4
    assert all(each.n_vocab == 131072 and each.overhead_ms.low > 0 for each in found.rounds)
    assert heard[0].done_s == 0.0
    done = [each.done_s for each in heard]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(heard[-1].total_s)
