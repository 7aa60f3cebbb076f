"""Test that a configuration gives a pair, modes and run sets, or a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.bench.config import BenchConfig
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN
from specd.bench.peer import PeerBinary
from specd.bench.quantized_blocks import FileType
from specd.bench.subject import Subject
from specd.errors import InvalidRequest, ModelNotFound
from specd.settings import Settings
from tests.fast import computes_long
from tests.gguf_files import OllamaStore, byte_vocabulary, write_llama

PEER = PeerBinary(program=("llama-server",), build="a build", same_build=True)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Settings()


def subject_of(config: BenchConfig, settings: Settings) -> Subject:
    return config.subject(settings, lambda _: None)


# ------------------------------------------------------------------ the pair


@computes_long
def test_without_a_model_the_demo_target_is_padded(settings: Settings) -> None:
    subject = subject_of(BenchConfig(target_size="12m", target_type=FileType.Q4_0), settings)
    assert subject.padded
    assert subject.target.is_file()
    assert "Q4_0" in subject.target.name
    assert subject.drafter is not None


@computes_long
def test_a_model_keeps_its_size_unless_another_is_asked_for(settings: Settings) -> None:
    assert not subject_of(BenchConfig(model="specd-demo"), settings).padded
    assert subject_of(BenchConfig(model="specd-demo", target_size="12m"), settings).padded


def test_a_model_of_the_store_brings_the_drafter_that_the_daemon_would_choose(
    settings: Settings, tmp_path: Path
) -> None:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "target.gguf")
    store.add("big", weights=weights, draft=write_llama(tmp_path / "draft.gguf", seed=1))
    subject = subject_of(BenchConfig(model="big"), settings)
    assert subject.name == "big:latest"
    assert subject.drafter == store.weights_path("big", "draft")
    assert subject.pair_source == "manifest"


def test_a_named_drafter_replaces_the_chosen_one(settings: Settings, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf")
    subject = subject_of(BenchConfig(model="specd-demo", drafter=other), settings)
    assert (subject.drafter, subject.drafter_name) == (other, "other.gguf")


def test_a_model_without_a_drafter_keeps_the_reason(settings: Settings, tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "target.gguf")
    shuffled = write_llama(tmp_path / "draft.gguf", vocabulary=byte_vocabulary(shuffle_seed=3))
    store.add("lonely", weights=weights)
    store.add("misled", weights=weights, draft=shuffled)
    lonely = subject_of(BenchConfig(model="lonely"), settings)
    assert lonely.drafter is None
    assert "No rule names a drafter for lonely" in lonely.detail
    assert "has another vocabulary" in subject_of(BenchConfig(model="misled"), settings).detail


def test_a_missing_model_or_file_gives_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        subject_of(BenchConfig(model="nobody"), settings)
    with pytest.raises(InvalidRequest, match=r"none\.gguf: no such file"):
        subject_of(BenchConfig(target=tmp_path / "none.gguf"), settings)
    with pytest.raises(InvalidRequest, match="not both"):
        subject_of(BenchConfig(model="specd-demo", target=tmp_path / "x"), settings)
    with pytest.raises(InvalidRequest, match="--target-size"):
        subject_of(BenchConfig(target_size="huge"), settings)


# ------------------------------------------------------------------ modes and legs


def names(config: BenchConfig, *, has_drafter: bool = True) -> list[str]:
    return [mode.name for mode in config.modes(has_drafter=has_drafter)]


def test_every_length_and_drafter_that_was_asked_for_is_a_mode() -> None:
    assert names(BenchConfig(draft_lengths=(2, 5))) == ["plain", "k = 2", "k = 5", "auto"]
    assert names(BenchConfig(draft_lengths=(), each_drafter=True)) == [
        "plain",
        "model alone",
        "lookup alone",
        "auto",
    ]
    assert names(BenchConfig(overhead=True)) == ["plain"]
    assert names(BenchConfig(overhead=True, peer=PEER)) == ["plain", "peer plain"]


def test_a_peer_decodes_plainly_and_at_every_length_of_its_own() -> None:
    config = BenchConfig(draft_lengths=(3,), peer=PEER, peer_lengths=(2, 8))
    assert names(config)[3:] == ["peer plain", "peer n_max = 2", "peer n_max = 8"]
    with pytest.raises(InvalidRequest, match="at most 3 lengths"):
        names(BenchConfig(peer=PEER, peer_lengths=(1, 2, 3, 4)))


def test_without_a_drafter_there_are_plain_and_auto_only(
    settings: Settings, tmp_path: Path
) -> None:
    config = BenchConfig(target=write_llama(tmp_path / "alone.gguf"), peer=PEER)
    (run_set,) = config.run_sets(subject_of(config, settings))
    assert run_set.modes == (PLAIN, AUTO, PEER_PLAIN)
    assert "hostile" not in {group.workload for group in run_set.groups}
    assert len(run_set.groups) == 16


def test_the_bench_respects_disabled_prompt_lookup(settings: Settings) -> None:
    for has_lookup, drafters in ((True, {"model", "lookup"}), (False, {"model"})):
        config = BenchConfig(model="specd-demo", prompt_lookup=has_lookup)
        run_sets = config.run_sets(subject_of(config, settings))
        assert {kind for run_set in run_sets for kind in run_set.drafters} == drafters


def test_workloads_that_cannot_be_filled_are_refused(settings: Settings) -> None:
    config = BenchConfig(model="specd-demo", workloads=("qa",), n_prompts=7, n_repeats=3)
    with pytest.raises(InvalidRequest, match="qa has 14 prompts, not 21"):
        config.run_sets(subject_of(config, settings))


def test_only_a_hostile_workload_needs_a_drafter(settings: Settings, tmp_path: Path) -> None:
    config = BenchConfig(target=write_llama(tmp_path / "alone.gguf"), workloads=("hostile",))
    with pytest.raises(InvalidRequest, match="hostile needs a drafter"):
        config.run_sets(subject_of(config, settings))
