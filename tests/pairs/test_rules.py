"""Check which rule is the closest to a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.pairs.rules import Rule, Rules, matches, shorten_home


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
        ("[ab]:c", "[ab]:c", True),
        ("*/*qwen3-8b*", "hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", True),
        ("*/*qwen3-8b*", "qwen3-8b:latest", False),
        ("a.b:1", "axb:1", False),
        ("*a" * 40 + "b", "a" * 300, False),
    ],
)
def test_patterns_match_short_names(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


def test_the_closest_rule_wins_whatever_the_order() -> None:
    wide, close, exact = rule("qwen3:*", "a"), rule("qwen3:8b*", "b"), rule("qwen3:8b", "c")
    for order in ((wide, close, exact), (exact, close, wide)):
        rules = Rules(packaged=order)
        assert rules.rule_for("qwen3:8b-q8_0") == close
        assert rules.rule_for("qwen3:32b") == wide
    assert Rules(packaged=(wide, close)).rule_for("qwen3:8b") == close
    assert Rules(packaged=(wide,)).rule_for("llama3.1:8b") is None


def test_of_equally_close_rules_the_first_wins() -> None:
    first, second = rule("m:1*", "a"), rule("m:1*", "b")
    assert Rules(packaged=(first, second)).rule_for("m:1b") == first


def test_the_users_rule_wins_even_when_it_is_wider() -> None:
    user = rule("*", "mine", origin="user")
    assert Rules(user=(user,), packaged=(rule("m:1b", "a"),)).rule_for("m:1b") == user


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


def test_the_machines_rules_go_between_the_users_and_the_packaged_ones() -> None:
    user, machine = rule("m:1b", "mine", origin="user"), rule("*", "ours", origin="user")
    rules = Rules(user=(user,), machine=(machine,), packaged=(rule("m:7b", "a"),))
    assert rules.rule_for("m:1b") == user
    assert rules.rule_for("m:7b") == machine


def test_a_rule_has_its_place_and_the_pattern_that_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = Rule(targets=("m:*", "m:1*", "x:*"), drafters=(), origin="registry")
    found = Rules(packaged=(packaged,)).rule_for("m:1b")
    assert found is not None
    assert found.label == "registry: m:1*"
    monkeypatch.setenv("HOME", str(tmp_path))
    own = Rule(targets=("m:*",), drafters=(), origin="user", file=tmp_path / "c" / "pairs.toml")
    assert own.label == "~/c/pairs.toml: m:*"
    assert shorten_home(Path("/etc/specd/pairs.toml")) == "/etc/specd/pairs.toml"


def test_the_end_of_its_draft_lengths_bounds_every_draft() -> None:
    assert Rule(targets=("m",), drafters=("d",), origin="user", draft_length=(2, 6)).max_draft == 6
    assert Rule(targets=("m",), drafters=("d",), origin="user").max_draft is None
