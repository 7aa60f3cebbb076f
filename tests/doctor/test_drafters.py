"""The finding on drafters, with real stores."""

from __future__ import annotations

from pathlib import Path

from specd.core import NoPair
from specd.doctor import drafters as drafters_of
from specd.doctor.drafters import drafters
from specd.doctor.finding import Finding, Level
from specd.pairs import Pairs, load_rules
from specd.store import Library
from tests.gguf_files import OllamaStore, write_llama


def finding(models: Path, *, enabled: bool = True) -> Finding:
    library = Library(models, demo=False)
    return drafters(library, Pairs(library, load_rules(), enabled=enabled), enabled=enabled)


def test_a_model_with_its_own_drafter_is_counted(tmp_path: Path) -> None:
    draft = write_llama(tmp_path / "d.gguf", seed=1)
    OllamaStore(tmp_path).add("m", weights=write_llama(tmp_path / "m.gguf"), draft=draft)
    found = finding(tmp_path)
    assert found.level is Level.OK
    assert found.words.startswith("1 of 1 models have a drafter (m:latest ← ")


def test_a_store_without_drafters_is_a_warning_with_the_reasons(tmp_path: Path) -> None:
    OllamaStore(tmp_path).add("m", weights=write_llama(tmp_path / "m.gguf"))
    found = finding(tmp_path)
    assert found.level is Level.WARNING
    assert (
        found.words
        == "0 of 1 models have a drafter; the others: 1 for which no drafter is installed"
    )


def test_each_reason_has_words() -> None:
    assert set(drafters_of.WHY) == set(NoPair)
    assert not any("_" in words for words in drafters_of.WHY.values())


def test_an_empty_store_is_no_problem(tmp_path: Path) -> None:
    assert finding(tmp_path).level is Level.ABSENT


def test_speculation_that_is_switched_off_is_a_warning(tmp_path: Path) -> None:
    assert finding(tmp_path, enabled=False).level is Level.WARNING
