"""A whole bench over the demo pair, and questions that cannot be answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.bench.report import to_json
from specd.bench.runs import Run
from specd.bench.session import Question, run_bench
from specd.bench.subject import Subject
from specd.core import SpeculationState
from specd.errors import InvalidRequest, ModelNotFound
from specd.settings import Settings
from tests.gguf_files import OllamaStore, byte_vocabulary, write_llama


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Settings()


def subject_of(question: Question, settings: Settings) -> Subject:
    return question.subject(settings, lambda _: None)


@pytest.mark.native
async def test_the_demo_pair_is_benched_from_load_to_report(settings: Settings) -> None:
    question = Question(
        model="specd-demo",
        n_prompts=2,
        n_tokens=20,
        draft_lengths=(2,),
        n_threads=1,
        n_gpu_layers=0,
    )
    heard: list[Run] = []
    subject = subject_of(question, settings)
    report = await run_bench(question, subject, settings, heard.append)
    assert len(heard) == len(question.plan) == 12
    assert [c.temperature for c in report.comparisons] == [0.0, 0.8]
    for comparison in report.comparisons:
        assert [figures.mode for figures in comparison.modes] == ["plain", "k = 2", "auto"]
        assert comparison.max_cached < 8
    plain = [run for run in heard if run.mode == "plain"]
    assert all(run.speculation.state is SpeculationState.OFF for run in plain)
    assert all(run.speculation.draft_n > 0 for run in heard if run.mode == "k = 2")
    assert to_json(report)["subject"]["drafter"]


@pytest.mark.native
async def test_overhead_needs_no_drafter_and_runs_plain_alone(
    settings: Settings, tmp_path: Path
) -> None:
    target = write_llama(tmp_path / "alone.gguf")
    question = Question(
        target=target,
        overhead=True,
        n_prompts=2,
        n_tokens=20,
        temperatures=(0.0,),
        n_threads=1,
        n_gpu_layers=0,
    )
    report = await run_bench(question, subject_of(question, settings), settings)
    (comparison,) = report.comparisons
    assert [figures.mode for figures in comparison.modes] == ["plain"]
    assert comparison.overhead_ms is not None
    assert comparison.overhead_ms.low > 0


def test_without_a_model_the_demo_target_is_made_large(settings: Settings) -> None:
    subject = subject_of(Question(target_size="12m"), settings)
    assert subject.padded
    assert subject.target.is_file()
    assert subject.drafter is not None


def test_a_model_keeps_its_size_unless_another_is_asked_for(settings: Settings) -> None:
    assert not subject_of(Question(model="specd-demo"), settings).padded
    assert subject_of(Question(model="specd-demo", target_size="12m"), settings).padded


def test_a_model_of_the_store_brings_the_drafter_that_the_daemon_would_choose(
    settings: Settings, tmp_path: Path
) -> None:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "target.gguf")
    store.add("big", weights=weights, draft=write_llama(tmp_path / "draft.gguf", seed=1))
    subject = subject_of(Question(model="big"), settings)
    assert subject.name == "big:latest"
    assert subject.drafter == store.weights_path("big", "draft")
    assert subject.pair_source == "manifest"


def test_a_drafter_can_be_named_instead(settings: Settings, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf")
    subject = subject_of(Question(model="specd-demo", drafter=other), settings)
    assert (subject.drafter, subject.drafter_name) == (other, "other.gguf")


def test_a_model_without_a_drafter_is_refused_with_the_reason(
    settings: Settings, tmp_path: Path
) -> None:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "target.gguf")
    shuffled = write_llama(tmp_path / "draft.gguf", vocabulary=byte_vocabulary(shuffle_seed=3))
    store.add("lonely", weights=weights)
    store.add("misled", weights=weights, draft=shuffled)
    with pytest.raises(InvalidRequest, match="No rule names a drafter for lonely"):
        subject_of(Question(model="lonely"), settings)
    with pytest.raises(InvalidRequest, match="does not speak the vocabulary"):
        subject_of(Question(model="misled"), settings)
    assert subject_of(Question(model="lonely", overhead=True), settings).drafter is None


def test_what_is_not_there_is_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        subject_of(Question(model="nobody"), settings)
    with pytest.raises(InvalidRequest, match=r"none\.gguf: no such file"):
        subject_of(Question(target=tmp_path / "none.gguf"), settings)
    with pytest.raises(InvalidRequest, match="not both"):
        subject_of(Question(model="specd-demo", target=tmp_path / "x"), settings)
    with pytest.raises(InvalidRequest, match="--target-size"):
        subject_of(Question(target_size="huge"), settings)


@pytest.mark.native
async def test_a_drafter_that_will_not_load_is_not_benched_as_if_it_did(
    settings: Settings, tmp_path: Path
) -> None:
    torn = write_llama(tmp_path / "torn.gguf")
    torn.write_bytes(torn.read_bytes()[:-2000])
    question = Question(model="specd-demo", drafter=torn, n_threads=1, n_gpu_layers=0)
    with pytest.raises(InvalidRequest, match="left the drafter out"):
        await run_bench(question, subject_of(question, settings), settings)
