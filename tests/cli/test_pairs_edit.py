"""`specd pairs add`, `refuse` and `remove`: what they write, and what they refuse."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd.cli.app import app
from specd.errors import BadSetting, InvalidName, InvalidRequest, ModelNotFound
from specd.pairs import rule_files
from specd.pairs.rule_files import read_rules
from tests.gguf_embedders import write_bert
from tests.gguf_files import SHAPE, VOCABULARY, OllamaStore, write_llama, write_truncated


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OllamaStore:
    """Create a big model, a small one, and a stranger with another vocabulary."""
    store = OllamaStore(tmp_path / "models")
    store.add("big", weights=write_llama(tmp_path / "big.gguf"))
    store.add("small", weights=write_llama(tmp_path / "small.gguf", seed=1))
    other = VOCABULARY.with_token(7, "other")
    store.add("stranger", weights=write_llama(tmp_path / "other.gguf", vocabulary=other))
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    monkeypatch.setenv("SPECD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(rule_files, "MACHINE_FILE", tmp_path / "etc" / "specd" / "pairs.toml")
    return store


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "config" / "specd" / "pairs.toml"


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pairs", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def row(model: str) -> dict[str, object]:
    [found] = json.loads(said(model, "--json"))
    assert isinstance(found, dict)
    return found


def test_add_pairs_the_model(own: Path) -> None:
    words = said("add", "big", "small", "--max-draft", "4")
    assert f"wrote {own}: small may draft for big" in words
    assert str(rule_files.MACHINE_FILE) in words  # where another user's daemon would look
    found = row("big")
    assert (found["drafter"], found["pair_source"]) == ("small:latest", "user")
    [rule] = read_rules(own, "user")
    assert rule.max_draft == 4


def test_refuse_forbids_drafting_and_remove_deletes_the_rule(own: Path) -> None:
    said("add", "big", "small")
    assert f"wrote {own}: nothing drafts for big" in said(
        "refuse", "big", "--reason", "it is quick"
    )
    found = row("big")
    assert (found["drafter"], found["reason"]) == (None, "refused_by_rule")
    assert "it is quick" in str(found["detail"])
    assert said("remove", "big:latest") == (
        f"wrote {own}: removed the rule for big:latest\nFor big:latest no rule is left\n"
    )
    assert read_rules(own, "user") == ()
    with pytest.raises(InvalidRequest, match="none of your files has a rule for exactly big"):
        said("remove", "big")


def test_a_drafter_with_another_vocabulary_is_refused_with_the_reason(own: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"stranger:latest .* big:latest.*token 7.*--force"):
        said("add", "big", "stranger")
    assert not own.exists()
    said("add", "big", "stranger", "--force")
    assert read_rules(own, "user")[0].drafters == ("stranger",)


def test_a_drafter_must_fit_only_one_of_several_models(own: Path) -> None:
    said("add", "*", "s*")
    assert read_rules(own, "user")[0].targets == ("*",)


def test_a_model_cannot_draft_for_itself() -> None:
    with pytest.raises(InvalidRequest, match="cannot draft for itself"):
        said("add", "big", "big")


def test_a_missing_drafter_is_added_with_a_warning(own: Path, tmp_path: Path) -> None:
    words = said(
        "add", "big", "tiny:1b", "t*:1b", str(tmp_path / "none.gguf"), "~no-such-user/x.gguf"
    )
    assert "Warning: tiny:1b is not in the store. `specd pull tiny:1b` gets it." in words
    assert "Warning: t*:1b is not in the store.\n" in words
    assert f"Warning: there is no file {tmp_path / 'none.gguf'}." in words
    assert "Warning: there is no file ~no-such-user/x.gguf." in words
    assert len(read_rules(own, "user")[0].drafters) == 4


def test_a_file_is_checked_like_a_model(own: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        said("add", "big", str(tmp_path / "other.gguf"))
    said("add", "big", str(tmp_path / "small.gguf"))
    assert row("big")["drafter"] == "small.gguf"


def test_a_relative_path_becomes_absolute(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said("add", "big", "../small.gguf")
    assert read_rules(own, "user")[0].drafters == (str(tmp_path / "small.gguf"),)
    assert row("big")["drafter"] == "small.gguf"
    (tmp_path / "here" / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(InvalidRequest, match=r"bad\.gguf.*--force"):
        said("add", "big", "./bad.gguf")


def test_a_target_with_its_own_drafter_gives_a_warning(store: OllamaStore, tmp_path: Path) -> None:
    store.add("both", weights=tmp_path / "big.gguf", draft=tmp_path / "small.gguf")
    warning = "Warning: both:latest has a drafter of its own"
    assert warning in said("add", "both", "small")
    assert row("both")["pair_source"] == "manifest"
    assert "of its own" not in said("add", "big", "small")


def test_a_missing_target_can_have_a_rule(own: Path) -> None:
    said("add", "hf.co/*/Future-70B-GGUF:*", "small")
    assert read_rules(own, "user")[0].targets == ("hf.co/*/Future-70B-GGUF:*",)


@pytest.mark.parametrize("name", ["", "a b", "a:b:c", ".../x", "-x", "a/b/c/d/e"])
def test_an_invalid_name_is_refused(name: str, own: Path) -> None:
    with pytest.raises(InvalidName, match="neither a model's name nor a pattern"):
        said("add", "--", name, "small")
    with pytest.raises(InvalidName):
        said("add", "--", "big", name)
    with pytest.raises(InvalidName):
        said("refuse", "--", name)
    assert not own.exists()


@pytest.mark.parametrize("n", ["0", "17", "x"])
def test_a_length_out_of_range_is_bad_usage(n: str) -> None:
    result = CliRunner().invoke(app, ["pairs", "add", "big", "small", "--max-draft", n])
    assert result.exit_code == 2


def test_add_writes_the_file_of_specd_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Path
) -> None:
    named = tmp_path / "mine.toml"
    named.write_text("# mine\n")
    monkeypatch.setenv("SPECD_PAIRS", str(named))
    assert said("add", "big", "small") == f"wrote {named}: small may draft for big\n"
    assert named.read_text().startswith("# mine\n")
    assert not own.exists()


def test_root_writes_the_machines_file_only_with_the_option(
    monkeypatch: pytest.MonkeyPatch, own: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    said("add", "big", "small")
    said("refuse", "small")
    assert not rule_files.MACHINE_FILE.exists()
    assert len(read_rules(own, "user")) == 2


def test_machine_writes_the_machines_file_and_names_rules_with_priority(own: Path) -> None:
    said("add", "big*", "small")
    words = said("add", "big", "small", "--machine")
    assert f"wrote {rule_files.MACHINE_FILE}" in words
    assert f"For big:latest another rule has priority: {own}: big*" in words
    with pytest.raises(InvalidRequest, match=rf"{rule_files.MACHINE_FILE} has: .* with --machine"):
        said("remove", "big")
    with pytest.raises(InvalidRequest, match=rf"{own} has: .* without --machine"):
        said("remove", "big*", "--machine")
    said("remove", "big*")
    assert read_rules(own, "user") == ()


def test_remove_names_the_rule_that_applies_instead(own: Path) -> None:
    said("add", "big", "small")
    said("refuse", "big", "--machine")
    machine = rule_files.MACHINE_FILE
    assert said("remove", "big") == (
        f"wrote {own}: removed the rule for big\n"
        f"For big:latest this rule applies now: {machine}: big\n"
    )
    assert "no rule is left" in said("remove", "big", "--machine")


def test_a_replaced_rule_is_printed() -> None:
    was = "This replaces the earlier rule:"
    assert was not in said("add", "big", "small", "--max-draft", "4")
    assert was not in said("add", "BIG:latest", "small", "--max-draft", "4")
    refused = said("refuse", "big", "--reason", "it is quick")
    assert f"{was} small may draft, at most 4 tokens at a time.\n" in refused
    assert f"{was} nothing drafts (it is quick).\n" in said("refuse", "big")
    assert f"{was} nothing drafts.\n" in said("add", "big", "small")


def test_a_misspelt_name_gives_a_suggestion() -> None:
    words = said("add", "stranegr", "smal")
    assert "Warning: no model here is called stranegr. Did you mean stranger?\n" in words
    assert "`specd pull smal` gets it. Did you mean small?\n" in words
    assert "Did you mean stranger?" in said("refuse", "strangr")


def test_a_misspelt_command_gives_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"'sugest.*' not found; did you mean `specd pairs su"):
        said("sugest")
    with pytest.raises(ModelNotFound):
        said("quite-another")


@pytest.mark.parametrize(
    "words, command", [(("remov", "big"), "remove"), (("ad", "big", "small"), "add")]
)
def test_a_misspelt_command_with_models_is_suggested(words: tuple[str, ...], command: str) -> None:
    with pytest.raises(InvalidRequest, match=f"did you mean `specd pairs {command}`"):
        said(*words)


def test_rules_are_equal_whatever_their_case(own: Path) -> None:
    said("add", "big:latest", "small")
    assert "another rule" not in said("add", "BIG", "small")
    assert len(read_rules(own, "user")) == 1
    said("add", "big:late*", "small")
    assert f"For big:latest another rule has priority: {own}" in said("refuse", "b*")


def test_a_missing_file_of_specd_pairs_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "new" / "mine.toml"
    monkeypatch.setenv("SPECD_PAIRS", str(named))
    with pytest.raises(BadSetting, match="`specd pairs add` makes it"):
        said("suggest")
    said("add", "big", "small")
    assert row("big")["drafter"] == "small:latest"
    named.unlink()
    said("refuse", "big")
    assert row("big")["reason"] == "refused_by_rule"


def test_a_model_that_can_never_draft_is_refused(
    store: OllamaStore, tmp_path: Path, own: Path
) -> None:
    store.add("minilm", weights=write_bert(tmp_path / "bert.gguf"))
    store.add("broken", weights=write_truncated(tmp_path / "broken.gguf"))
    for target in ("big", "not-here-yet"):
        with pytest.raises(InvalidRequest, match=r"gives vectors instead of text.*--force"):
            said("add", target, "minilm")
        with pytest.raises(InvalidRequest, match=r"broken.*truncated.*--force"):
            said("add", target, "broken")
        with pytest.raises(InvalidRequest, match=r"broken.gguf.*truncated.*--force"):
            said("add", target, str(tmp_path / "broken.gguf"))
    assert not own.exists()
    said("add", "big", "broken", "--force")
    assert read_rules(own, "user")[0].drafters == ("broken",)


def test_a_drafter_larger_than_its_target_gives_a_warning(
    store: OllamaStore, tmp_path: Path
) -> None:
    huge = write_llama(tmp_path / "huge.gguf", shape=replace(SHAPE, n_layer=6), seed=2)
    store.add("huge", weights=huge)
    assert "Warning: huge:latest is larger than big:latest" in said("add", "big", "huge")
    assert "is larger than" not in said("add", "huge", "big")
    assert "is larger than" not in said("add", "*", "huge")


def test_a_target_that_matches_nothing_gives_a_warning() -> None:
    assert "Warning: no model here is called nosuchmodel." in said("add", "nosuchmodel", "small")
    assert "Warning: no model here is called x*." in said("refuse", "x*")


def test_a_model_named_like_a_command_can_be_shown(store: OllamaStore, tmp_path: Path) -> None:
    store.add("add", weights=write_llama(tmp_path / "add.gguf", seed=3))
    assert row("add:latest")["model"] == "add:latest"
    [found] = json.loads(said("show", "add", "--json"))
    assert found["model"] == "add:latest"
