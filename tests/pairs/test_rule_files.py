"""Check the rule files: their paths, errors in them, and changes while the daemon runs."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import msgspec
import pytest

from specd.engine.speculative import controller
from specd.errors import BadSetting
from specd.pairs import load_rules
from specd.pairs.rule_files import (
    MACHINE_FILE,
    MAX_DRAFT,
    MeasuredSpeedup,
    PairTable,
    RuleFilePaths,
    RuleFiles,
    default_rule_paths,
    read_rules,
)
from specd.pairs.rules import Rule

DOCS = Path(__file__).parents[2] / "docs" / "pairs.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairs.toml"


def drafter_of(rules: RuleFiles, target: str = "m:70b") -> str | None:
    found = rules.rule_for(target)
    return found.drafters[0] if found is not None else None


def pair(target: str, drafter: str) -> str:
    return f'[[pair]]\ntarget = "{target}"\ndrafters = ["{drafter}"]\n'


# ---------------------------------------------------------------------------- the format


def test_a_rule_has_all_fields_of_its_entry(path: Path) -> None:
    path.write_text("""
[[pair]]
target = ["a:*", "b"]
drafters = ["a:1b", "a:2b*", "~/tiny.gguf", "hf.co/x/y:Q8_0"]
expected = { code = 2, chat = 1.4 }
draft_length = [2, 8]
source = "https://example.org"

[[pair]]
target = "c"
drafters = ["c:1b*"]
pull = ["c:1b"]
[[pair.measured]]
target = "c"
drafter = "d"
hardware = "h"
workload = "w"
plain_tokens_per_s = 1
tokens_per_s = 2.5
source = "https://example.org"

[[pair]]
target = "d"
drafters = []
reason = "no need"
""")
    assert read_rules(path, "user") == (
        Rule(
            targets=("a:*", "b"),
            drafters=("a:1b", "a:2b*", "~/tiny.gguf", "hf.co/x/y:Q8_0"),
            origin="user",
            pull=("a:1b", "hf.co/x/y:Q8_0"),
            expected={"code": 2, "chat": 1.4},
            draft_length=(2, 8),
            source="https://example.org",
        ),
        Rule(targets=("c",), drafters=("c:1b*",), origin="user", pull=("c:1b",)),
        Rule(targets=("d",), drafters=(), origin="user", reason="no need"),
    )


def test_an_empty_file_has_no_rules(path: Path) -> None:
    path.write_text("")
    assert read_rules(path, "user") == ()


@pytest.mark.parametrize(
    "text,words",
    [
        ("[[pair]\n", "is not TOML: .*line 1"),
        ("[[pair]]\ndrafters = []\n", "pair 1: the field `target` is missing"),
        ('[[pair]]\ntarget = "a"\ndrafters = "b"\n', "`drafters` must be a list, and is text"),
        ('[[pair]]\ntarget = "a"\ndrafter = ["b"]\n', "there is no field `drafter`"),
        ('[[pair]]\ntarget = "a"\nstr = 1\n', "there is no field `str`"),
        ('[[pair]]\ntarget = []\ndrafters = ["b"]\n', "pair 1: `target` must not be empty"),
        (
            "[[pair]]\ntarget = 1\n",
            "pair 1: `target` must be text or a list, and is a whole number",
        ),
        ('[[pair]]\ntarget = "a"\ndrafters = [""]\n', "item 1 of `drafters` must not be empty"),
        ('[[pair]]\ntarget = "a"\ndrafters = ["b", " "]\n', r"pair 1 \(a\): a name is empty"),
        ('[[pair]]\ntarget = "a"\nexpected = { poems = 2 }\n', "`expected`: there is no `poems`"),
        ('[[pair]]\ntarget = "a"\nexpected = { code = 0 }\n', "of `expected` must be above 0"),
        ('[[pair]]\ntarget = "a"\nexpected = { code = nan }\n', "of `expected` must be above 0"),
        ('[[pair]]\ntarget = "a"\nexpected = { code = "2" }\n', "must be a number, and is text"),
        (
            '[[pair]]\ntarget = "a"\ndraft_length = [0, 4]\n',
            "1 of `draft_length` must be at least 1",
        ),
        ('[[pair]]\ntarget = "a"\ndraft_length = [2, 17]\n', "`draft_length` must be at most 16"),
        ('[[pair]]\ntarget = "a"\ndraft_length = [4]\n', "must have 2 items, and has 1"),
        ('[[pair]]\ntarget = "a"\ndraft_length = [8, 4]\n', "`draft_length` begins above its end"),
        ('[[pair]]\ntarget = "a"\npull = ["b:*"]\n', r"b:\*, which cannot be pulled"),
        ('[[pair]]\ntarget = "a"\npull = ["/b.gguf"]\n', "/b.gguf, which cannot be pulled"),
        (
            '[[pair]]\ntarget = "a"\n[[pair.measured]]\ntarget = "a"\n',
            "item 1 of `measured`: the field `drafter` is missing",
        ),
        (
            pair("a", "b") + '[[pair]]\ntarget = ["c:1b", "d"]\nreason = 1\n',
            r"pair 2 \(c:1b\): `rea",
        ),
        (pair("a", "b") + '[[pair]]\ntarget = "c"\npull = ["~"]\n', r"pair 2 \(c\): `pull` has ~"),
        ("pair = 1\n", "wrong: `pair` must be a list, and is a whole number"),
        ("pair = [1]\n", "pair 1: it must be a table"),
        ("pears = []\n", "wrong: there is no field `pears`"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(
    path: Path, text: str, words: str
) -> None:
    path.write_text(text)
    with pytest.raises(BadSetting) as refused:
        RuleFiles(RuleFilePaths(named=path))
    assert str(path) in str(refused.value)
    assert re.search(words, str(refused.value))
    assert "$" not in str(refused.value)


def test_a_file_that_is_missing_no_text_or_no_file_is_refused(path: Path) -> None:
    with pytest.raises(BadSetting, match=r"SPECD_PAIRS names .*toml, which is not there"):
        RuleFiles(RuleFilePaths(named=path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadSetting, match="not UTF-8"):
        RuleFiles(RuleFilePaths(named=path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadSetting, match="is not a file"):
        RuleFiles(RuleFilePaths(named=path))


def test_no_draft_is_longer_than_the_controllers_own_bound() -> None:
    assert MAX_DRAFT == controller.MAX_DRAFT


@pytest.mark.parametrize("struct,of", [(PairTable, "pair"), (MeasuredSpeedup, "measured")])
def test_the_page_lists_every_field(struct: type[msgspec.Struct], of: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [field for field, room in listed if room == of] == [*struct.__struct_fields__]


# ---------------------------------------------------------------------------- which files


def test_the_users_file_goes_before_the_machines_and_that_before_the_packaged(
    tmp_path: Path,
) -> None:
    own, machine = tmp_path / "own.toml", tmp_path / "machine.toml"
    rules = RuleFiles(RuleFilePaths(own=own, machine=machine))
    assert drafter_of(rules, "qwen3:32b") == "qwen3:0.6b*"
    machine.write_text(pair("qwen3:*", "machines"))
    assert drafter_of(rules, "qwen3:32b") == "machines"
    own.write_text(pair("*", "mine"))
    assert drafter_of(rules, "qwen3:32b") == "mine"
    found = rules.rule_for("qwen3:32b")
    assert found is not None
    assert (found.origin, found.label) == ("user", f"{own}: *")


def test_a_named_file_replaces_the_users_own(tmp_path: Path) -> None:
    own, named = tmp_path / "own.toml", tmp_path / "named.toml"
    own.write_text(pair("m:*", "own"))
    named.write_text(pair("n:*", "named"))
    rules = RuleFiles(RuleFilePaths(named=named, own=own))
    assert drafter_of(rules, "n:70b") == "named"
    assert drafter_of(rules, "m:70b") is None


def test_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    places = default_rule_paths()
    assert (places.user, places.machine) == (tmp_path / "specd" / "pairs.toml", MACHINE_FILE)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_rule_paths().user == tmp_path / ".config" / "specd" / "pairs.toml"
    assert default_rule_paths(tmp_path / "mine.toml").user == tmp_path / "mine.toml"
    (tmp_path / "mine.toml").write_text(pair("m:*", "mine"))
    assert drafter_of(load_rules(tmp_path / "mine.toml")) == "mine"


# ---------------------------------------------------------------------------- while it runs


def test_a_file_that_changed_is_read_again(path: Path) -> None:
    path.write_text(pair("m:*", "first"))
    rules = RuleFiles(RuleFilePaths(named=path))
    assert drafter_of(rules) == "first"
    path.write_text(pair("m:*", "the second"))
    assert drafter_of(rules) == "the second"


def test_a_change_that_leaves_a_file_as_long_as_it_was_is_seen(path: Path) -> None:
    path.write_text(pair("m:*", "one"))
    rules = RuleFiles(RuleFilePaths(named=path))
    seen = path.stat()
    path.write_text(pair("m:*", "two"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1_000_000))
    assert drafter_of(rules) == "two"


def test_a_draft_may_have_only_one_length(path: Path) -> None:
    path.write_text('[[pair]]\ntarget = "a"\ndraft_length = [4, 4]\n')
    [rule] = read_rules(path, "user")
    assert rule.draft_length == (4, 4)


def test_the_users_file_may_appear_and_disappear(path: Path) -> None:
    rules = RuleFiles(RuleFilePaths(own=path))
    assert drafter_of(rules) is None
    path.write_text(pair("m:*", "mine"))
    assert drafter_of(rules) == "mine"
    path.unlink()
    assert drafter_of(rules) is None


def test_an_error_in_a_changed_file_is_logged_once_and_the_last_good_rules_stay(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(pair("m:*", "good"))
    rules = RuleFiles(RuleFilePaths(named=path))
    path.write_text("[[pair]]\ntarget = 1\n")
    with caplog.at_level(logging.WARNING):
        assert [drafter_of(rules) for _ in range(3)] == ["good"] * 3
        [warning] = caplog.messages
        assert str(path) in warning
        assert "pair 1: `target` must be text" in warning
        path.unlink()
        assert [drafter_of(rules) for _ in range(2)] == ["good"] * 2
        assert "which is not there" in caplog.messages[1]
        assert len(caplog.messages) == 2
    path.write_text(pair("m:*", "good again"))
    assert drafter_of(rules) == "good again"


def test_an_unchanged_file_is_not_read_again(path: Path) -> None:
    path.write_text(pair("m:*", "one"))
    rules = RuleFiles(RuleFilePaths(named=path))
    seen = path.stat()
    path.write_text(pair("m:*", "two"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert drafter_of(rules) == "one"


def test_an_inaccessible_folder_has_no_rules(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert drafter_of(RuleFiles(RuleFilePaths(own=tmp_path / "file" / "pairs.toml"))) is None


def test_a_service_skips_an_invalid_file_unless_it_was_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, machine = tmp_path / "own.toml", tmp_path / "machine.toml"
    own.write_text("pair = 1")
    machine.write_text(f"pair = {'[' * 100_000}")
    places = RuleFilePaths(own=own, machine=machine)
    with pytest.raises(BadSetting):
        RuleFiles(places)
    rules = RuleFiles(places, serves=True)
    assert [str(path) in caplog.text for path in (own, machine)] == [True, True]
    assert drafter_of(rules, "qwen3:32b") == "qwen3:0.6b*"
    own.write_text(pair("*", "mine"))
    assert drafter_of(rules, "qwen3:32b") == "mine", "the corrected file must be read"
    machine.write_bytes(b"#" * 5_000_000)
    with pytest.raises(BadSetting, match="more than 4194304 bytes"):
        RuleFiles(RuleFilePaths(named=machine), serves=True)
