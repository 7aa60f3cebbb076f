"""The rules: patterns, precedence, the packaged file, and errors in the user's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import BadSetting
from specd.pairs.registry import (
    Rule,
    Rules,
    load_rules,
    matches,
    packaged_file,
    read_rules,
)


def rule(target: str, *drafters: str, origin: str = "registry") -> Rule:
    return Rule(targets=(target,), drafters=drafters, origin=origin)


@pytest.mark.parametrize(
    "pattern,name,fits",
    [
        ("llama3.3:70b*", "llama3.3:70b-instruct-q4_K_M", True),
        ("llama3.3:70b*", "LLAMA3.3:70B", True),
        ("llama3.3:70b*", "llama3.1:70b", False),
        ("llama3.2", "llama3.2:latest", True),
        ("llama3.2", "llama3.2:1b", False),
        ("llama3*", "llama3.2:1b", True),
        ("qwen3:?b", "qwen3:8b", True),
        ("qwen3:?b", "qwen3:14b", False),
        ("hf.co/*/repo:*", "hf.co/user/repo:Q8_0", True),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", True),
        ("[ab]:c", "a:c", False),
    ],
)
def test_patterns_match_short_names(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


def test_the_closest_rule_wins_whatever_the_order() -> None:
    wide, close, exact = rule("qwen3:*", "a"), rule("qwen3:8b*", "b"), rule("qwen3:8b", "c")
    for order in ((wide, close, exact), (exact, close, wide)):
        rules = Rules(packaged=order)
        assert rules.rule_for("qwen3:8b-q8_0") is close
        assert rules.rule_for("qwen3:32b") is wide
    assert Rules(packaged=(wide, close)).rule_for("qwen3:8b") is close
    assert Rules(packaged=(wide,)).rule_for("llama3.1:8b") is None


def test_of_equally_close_rules_the_first_wins() -> None:
    first, second = rule("m:1*", "a"), rule("m:1*", "b")
    assert Rules(packaged=(first, second)).rule_for("m:1b") is first


def test_the_users_rule_wins_even_when_it_is_wider() -> None:
    user = rule("*", "mine", origin="user")
    assert Rules(user=(user,), packaged=(rule("m:1b", "a"),)).rule_for("m:1b") is user


@given(
    st.lists(st.sampled_from(["*", "m*", "m:*", "m:1*", "m:1b", "x*"]), max_size=5),
    st.sampled_from(["m:1b", "m:70b", "x:latest", "other:latest"]),
)
def test_the_chosen_rule_matches_and_none_that_matches_is_closer(
    patterns: list[str], target: str
) -> None:
    rules = Rules(packaged=tuple(rule(pattern) for pattern in patterns))
    chosen = rules.rule_for(target)
    weights = [r.weight(target) for r in rules.packaged]
    if chosen is None:
        assert all(weight < 0 for weight in weights)
    else:
        assert chosen.weight(target) == max(weights) >= 0


# ------------------------------------------------------------------------ the packaged file


def test_the_packaged_rules_load_and_know_the_published_families() -> None:
    rules = load_rules()
    for target, drafter in [
        ("llama3.3:latest", "llama3.2:1b*"),
        ("llama3.1:8b-instruct-q8_0", "llama3.2:1b*"),
        ("qwen3:32b", "qwen3:0.6b*"),
        ("qwen2.5-coder:32b", "qwen2.5-coder:0.5b*"),
        ("qwen2.5:14b", "qwen2.5:0.5b*"),
        ("gemma3:27b-it-qat", "gemma3:1b*"),
    ]:
        found = rules.rule_for(target)
        assert found is not None, target
        assert found.drafters[0] == drafter
        assert found.origin == "registry"
    assert rules.rule_for("qwen3:0.6b") is None


def test_every_packaged_rule_and_figure_names_its_source() -> None:
    data = tomllib.loads(packaged_file().read_text(encoding="utf-8"))
    for entry in data["pair"]:
        assert entry["source"].startswith("https://"), entry
        assert entry["drafters"]
        for measured in entry.get("measured", ()):
            assert measured["source"].startswith("https://"), measured
            assert measured["tokens_per_s"] > 0


# ---------------------------------------------------------------------------- a user's file


def test_a_users_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text('[[pair]]\ntarget = ["a:*", "b"]\ndrafters = []\nreason = "no need"\n')
    rules = load_rules(path)
    assert rules.user == (Rule(targets=("a:*", "b"), drafters=(), origin="user", reason="no need"),)


def test_an_empty_file_has_no_rules(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text("")
    assert read_rules(path, "user") == ()


@pytest.mark.parametrize(
    "text,words",
    [
        ("[[pair]\n", "line 1"),
        ("[[pair]]\ndrafters = []\n", "`target`"),
        ('[[pair]]\ntarget = "a"\ndrafters = "b"\n', "$.pair[0].drafters"),
        ('[[pair]]\ntarget = "a"\ndrafter = ["b"]\n', "drafter"),
        ('[[pair]]\ntarget = []\ndrafters = ["b"]\n', "$.pair[0]"),
        ('[[pair]]\ntarget = "a"\ndrafters = [""]\n', "$.pair[0]"),
        ("pair = 1\n", "$.pair"),
        ("pears = []\n", "pears"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(text)
    with pytest.raises(BadSetting) as refused:
        load_rules(path)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="No such file"):
        load_rules(tmp_path / "none.toml")
    path = tmp_path / "pairs.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadSetting, match="not UTF-8"):
        load_rules(path)
