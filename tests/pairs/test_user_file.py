"""Check the rules that commands write: their file, and the parts that must not change."""

from __future__ import annotations

import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.errors import BadSetting, StoreError
from specd.pairs import user_file
from specd.pairs.rule_files import RuleFilePaths, read_rules
from specd.pairs.rules import Rules
from specd.pairs.user_file import file_to_write
from specd.store import safe_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specd" / "pairs.toml"


def rules_of(path: Path) -> dict[str, tuple[str, ...]]:
    return {"|".join(rule.targets): rule.drafters for rule in read_rules(path, "user")}


def test_the_first_rule_makes_the_file_and_its_folder(path: Path) -> None:
    user_file.add(path, "m:*", ["m:1b", "~/tiny.gguf"], draft_length=(2, 6))
    [rule] = read_rules(path, "user")
    assert (rule.targets, rule.drafters) == (("m:*",), ("m:1b", "~/tiny.gguf"))
    assert rule.max_draft == 6
    assert path.read_text().startswith("# ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["pairs.toml"]


def test_comments_order_and_other_rules_stay_as_they_are(path: Path) -> None:
    path.parent.mkdir()
    before = """# mine, do not touch

[[pair]]   # the big one
target = ["big:*", 'other:7b']
drafters = [
    "small:1b",  # the quick one
]
expected = {code = 2}

# last
"""
    path.write_text(before)
    user_file.add(path, "new:latest", ["tiny"])
    assert path.read_text().startswith(before)
    user_file.refuse(path, "third", "it is quick")
    assert user_file.remove(path, "new")
    assert user_file.remove(path, "third:latest")
    assert path.read_text().rstrip() == before.rstrip()


def test_rules_stand_apart_and_the_last_one_leaves_nothing(path: Path) -> None:
    user_file.add(path, "a", ["b"])
    user_file.add(path, "c", ["d"])
    header, *rules = path.read_text().split("\n\n")
    assert [rule.splitlines()[:2] for rule in rules] == [
        ["[[pair]]", 'target = "a"'],
        ["[[pair]]", 'target = "c"'],
    ]
    user_file.remove(path, "a")
    user_file.remove(path, "c")
    assert path.read_text() == header + "\n"


def test_a_new_rule_replaces_the_old_one_of_its_target(path: Path) -> None:
    user_file.add(path, "a", ["first"], draft_length=(1, 4))
    user_file.add(path, "b", ["b1"])
    user_file.refuse(path, "A:latest", "no")
    first, _ = read_rules(path, "user")
    assert (first.drafters, first.reason, first.draft_length) == ((), "no", None)
    user_file.add(path, "a", ["second"])
    first, _ = read_rules(path, "user")
    assert (first.drafters, first.reason) == (("second",), "")
    assert rules_of(path) == {"a": ("second",), "b": ("b1",)}


def test_only_one_target_is_removed_from_a_list(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('[[pair]]\ntarget = ["a", "b", "c"]\ndrafters = ["d"]\n')
    user_file.refuse(path, "b")
    assert rules_of(path) == {"a|c": ("d",), "b": ()}
    assert user_file.remove(path, "a")
    assert user_file.remove(path, "c")
    assert rules_of(path) == {"b": ()}


def test_an_earlier_list_does_not_hide_the_change(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('[[pair]]\ntarget=["a","x"]\ndrafters=["d"]\n[[pair]]\ntarget="a"\n')
    user_file.add(path, "a", ["mine"])
    assert rules_of(path) == {"x": ("d",), "a": ("mine",)}


def test_rules_written_in_one_line_are_changed_too(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('pair = [{ target = "a", drafters = ["b"] }]\n')
    user_file.add(path, "c", ["d"])
    user_file.add(path, "a", ["e"])
    assert rules_of(path) == {"a": ("e",), "c": ("d",)}


def test_removing_a_missing_rule_changes_nothing(path: Path) -> None:
    assert not user_file.remove(path, "m")
    assert not path.exists()
    user_file.add(path, "m:*", ["d"])
    before = path.stat().st_mtime_ns
    assert not user_file.remove(path, "m:1b")
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["[[pair]\n", "[[pair]]\ntarget = 1\n", "\udcff"])
def test_an_invalid_file_is_not_changed(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadSetting, match=r"pairs\.toml"):
        user_file.add(path, "m", ["d"])
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_a_link_stays_one_and_rights_stay(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir()
    real = tmp_path / "real.toml"
    real.write_text("")
    real.chmod(0o640)
    path.symlink_to(real)
    user_file.add(path, "m", ["d"])
    assert path.is_symlink()
    assert rules_of(real) == {"m": ("d",)}
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write the pairs file .*pairs.toml"):
        user_file.add(tmp_path / "file" / "pairs.toml", "m", ["d"])


_PATTERNS = st.sampled_from(["a", "a:latest", "A", "b:*", "b:1*", "c", "*"])
_CHANGES = st.one_of(
    st.tuples(st.just("add"), _PATTERNS, st.sampled_from(["x", "y"])),
    st.tuples(st.just("refuse"), _PATTERNS, st.just("")),
    st.tuples(st.just("remove"), _PATTERNS, st.just("")),
)


@settings(max_examples=40)
@given(changes=st.lists(_CHANGES, max_size=12))
def test_after_any_changes_each_target_has_its_last_rule(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("pairs") / "pairs.toml"
    expected: dict[str, tuple[str, ...]] = {}
    for what, target, drafter in changes:
        key = (target if ":" in target or target == "*" else f"{target}:latest").lower()
        if what == "add":
            user_file.add(path, target, [drafter])
            expected[key] = (drafter,)
        elif what == "refuse":
            user_file.refuse(path, target)
            expected[key] = ()
        else:
            assert user_file.remove(path, target) == (expected.pop(key, None) is not None)
    rules = Rules(user=read_rules(path, "user") if path.exists() else ())
    for key, drafters in expected.items():
        found = rules.rule_for(key.replace("*", "1"))
        if not any(letter in key for letter in "*"):
            assert found is not None
            assert found.drafters == drafters
    assert len(rules.user) == len(expected)


# ---------------------------------------------------------------------------- which file


@pytest.fixture
def places(tmp_path: Path) -> Callable[..., RuleFilePaths]:
    def make(*, named: bool = False) -> RuleFilePaths:
        machine = tmp_path / "machine.toml"
        machine.write_text("")
        return RuleFilePaths(
            named=tmp_path / "named.toml" if named else None,
            own=tmp_path / "own.toml",
            machine=machine,
        )

    return make


@pytest.mark.parametrize(
    "named,of_machine,name",
    [
        (True, False, "named.toml"),
        (False, False, "own.toml"),
        (True, True, "machine.toml"),
        (False, True, "machine.toml"),
    ],
)
def test_the_machines_file_is_written_on_request(
    places: Callable[..., RuleFilePaths], named: bool, of_machine: bool, name: str
) -> None:
    assert file_to_write(places(named=named), of_machine=of_machine).name == name


def test_a_user_without_a_home_gets_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="SPECD_PAIRS"):
        file_to_write(RuleFilePaths(machine=tmp_path / "none.toml"), of_machine=False)


# ---------------------------------------------------------------------------- refusals


def test_rules_that_could_not_be_read_again_are_not_written(path: Path) -> None:
    for drafters in ([" "], [""]):
        with pytest.raises(BadSetting, match=r"pairs\.toml"):
            user_file.add(path, "m", drafters)
        assert not path.exists()
    user_file.add(path, "m", ["d"])
    before = path.read_bytes()
    with pytest.raises(BadSetting, match=r"pairs\.toml"):
        user_file.add(path, " ", ["d"])
    assert path.read_bytes() == before


def test_a_busy_lock_is_named_without_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file.add(path, "m", ["d"])
    monkeypatch.setattr(
        user_file, "exclusive_lock", partial(safe_files.exclusive_lock, lock_timeout_s=0)
    )
    expected = f"cannot write the pairs file {path}: another specd is writing here"
    with safe_files.exclusive_lock(path.parent), pytest.raises(StoreError) as caught:
        user_file.add(path, "n", ["d"])
    assert str(caught.value) == expected


def test_a_pattern_that_ends_in_a_star_has_every_tag(path: Path) -> None:
    user_file.add(path, "m*", ["a"])
    assert not user_file.remove(path, "m*:latest")
    user_file.add(path, "m*:latest", ["b"])
    assert rules_of(path) == {"m*": ("a",), "m*:latest": ("b",)}
