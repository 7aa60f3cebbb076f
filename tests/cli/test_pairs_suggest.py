"""`specd pairs suggest`: what to pull, and why nothing would help."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.pairs_suggest import Suggestion, show, suggest_for_pair
from specd.core import Drafter, LocalModel, NoPair, Pair
from specd.errors import ModelNotFound
from specd.pairs import Rule, rule_files
from tests.gguf_files import OllamaStore, write_llama

TARGET = LocalModel(name="big:70b", full_name="", digest="", weights=Path("w"))
RULE = Rule(
    targets=("big:*",),
    drafters=("small:1b*", "small:3b*"),
    origin="registry",
    pull=("small:1b", "small:3b"),
    expected={"code": 2.07, "any": 1.3},
)


def alone(reason: NoPair = NoPair.NOT_FOUND, detail: str = "No drafter is installed.") -> Pair:
    return Pair(target=TARGET, reason=reason, detail=detail)


def test_missing_drafters_are_suggested_the_best_first() -> None:
    found = suggest_for_pair(alone(), RULE, set())
    assert (found.pull, found.command) == (("small:1b", "small:3b"), "specd pull small:1b")
    assert found.expected == {"code": 2.07, "any": 1.3}


def test_the_next_drafter_is_suggested_if_a_local_one_does_not_fit() -> None:
    here = {"registry.ollama.ai/library/small:1b"}
    pair = alone(NoPair.VOCABULARY_DIFFERS, "It speaks otherwise.")
    found = suggest_for_pair(pair, RULE, here)
    assert (found.pull, found.why) == (("small:3b",), "It speaks otherwise.")
    assert suggest_for_pair(pair, RULE, here | {"registry.ollama.ai/library/small:3b"}).pull == ()


@pytest.mark.parametrize(
    "reason",
    [NoPair.REFUSED_BY_RULE, NoPair.CANNOT_REWIND, NoPair.EMBEDS, NoPair.DISABLED_BY_USER],
)
def test_the_reason_is_given_if_no_drafter_can_help(reason: NoPair) -> None:
    found = suggest_for_pair(alone(reason, "Because."), RULE, set())
    assert (found.pull, found.why) == ((), "Because.")


def test_a_rule_without_drafters_to_pull_gives_its_reason() -> None:
    rule = Rule(targets=("big:*",), drafters=("x*",), origin="registry", reason="they differ")
    for reason in ("they differ", "they differ."):
        found = suggest_for_pair(alone(), replace(rule, reason=reason), set())
        assert found.why == "Nothing to pull: they differ."


def test_a_model_without_a_rule_suggests_adding_one() -> None:
    found = suggest_for_pair(alone(detail="No rule names one, and it is quick."), None, set())
    assert found.why == (
        "No rule names one, and it is quick. `specd pairs add big:70b DRAFTER` names one."
    )


@pytest.mark.parametrize(
    "origin,words", [("registry", "the published pair"), ("user", "your rule")]
)
def test_a_rules_drafter_is_suggested_next_to_a_local_one(origin: str, words: str) -> None:
    drafter = Drafter(name="stopgap:2b", weights=Path("d"), source="shelf")
    pair = Pair(target=TARGET, drafter=drafter, pull=("small:1b",))
    found = suggest_for_pair(pair, replace(RULE, origin=origin), set())
    assert (found.drafter, found.pull) == ("stopgap:2b", ("small:1b",))
    assert found.expected == RULE.expected
    assert words in found.why
    assert "stopgap:2b drafts for it, from the local store" in found.why


def test_a_model_with_a_drafter_gets_no_suggestion() -> None:
    drafter = Drafter(name="small:1b", weights=Path("d"), source="registry")
    found = suggest_for_pair(Pair(target=TARGET, drafter=drafter), RULE, set())
    assert (found.drafter, found.pull) == ("small:1b", ())
    assert found.why == "small:1b drafts for it already."


def test_commands_stay_on_one_line_and_reasons_are_wrapped() -> None:
    pull = ("hf.co/somebody/A-Model-With-A-Long-Name-Indeed-DRAFT-0.5B-GGUF", "small:3b")
    rows = [
        Suggestion(model="moe:30b", why="It is a mixture of experts. " * 4),
        Suggestion(model="big:70b", pull=pull, expected={"code": 2.07, "any": 1.3}),
        Suggestion(model="mid:8b", pull=("small:1b",), why="What is here speaks otherwise."),
    ]
    console = Console(file=io.StringIO(), width=60)
    show(rows, console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[:7] == [
        "big:70b",
        f"    specd pull {pull[0]}    published: code 2.1×, 1.3× as fast",
        "    specd pull small:3b    or this one",
        "mid:8b",
        "    What is here speaks otherwise.",
        "    specd pull small:1b    no published figure",
        "moe:30b",
    ]
    assert max(map(len, console.file.getvalue().splitlines()[7:])) <= 60


# --------------------------------------------------------------------------- the command


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OllamaStore:
    store = OllamaStore(tmp_path / "models")
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    monkeypatch.setenv("SPECD_DEMO", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(rule_files, "MACHINE_FILE", tmp_path / "none.toml")
    store.add("qwen3:32b", weights=write_llama(tmp_path / "t.gguf"))
    store.add("gpt-oss:20b", weights=write_llama(tmp_path / "m.gguf", seed=2))
    return store


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pairs", "suggest", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_packaged_registry_suggests_drafters_for_local_models(store: OllamaStore) -> None:
    refused, wanting = json.loads(said("--json"))
    assert (wanting["model"], wanting["command"]) == ("qwen3:32b", "specd pull qwen3:0.6b")
    assert wanting["expected"] == {"any": 1.3}
    assert (refused["model"], refused["command"]) == ("gpt-oss:20b", None)
    assert "mixture of experts" in refused["why"]
    assert "specd pull qwen3:0.6b" in said()
    assert json.loads(said("qwen3:32b", "--json")) == [wanting]


def test_a_store_where_every_model_has_a_drafter_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "empty"))
    monkeypatch.setenv("SPECD_DEMO", "0")
    assert said() == "Every model here has a drafter.\n"


def test_a_missing_model_is_an_error_and_a_damaged_one_a_row(
    store: OllamaStore, tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound):
        said("none")
    store.weights_path("qwen3:32b").unlink()
    rows = {row["model"]: row for row in json.loads(said("--json"))}
    assert rows["qwen3:32b"]["why"]
    assert rows["qwen3:32b"]["pull"] == []
