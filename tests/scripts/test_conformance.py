"""The conformance table is made of what tests name, and believed by what they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import conformance
from scripts.conformance import Behaviour

ONE, TWO, LATER = (
    Behaviour("a.one", "A", "One"),
    Behaviour("a.two", "A", "Two", different="better"),
    Behaviour("b.later", "B", "Later", not_done="no time"),
)
CATALOGUE = """
[[section]]
title = "A"
[section.behaviours]
"a.one" = "One"
[forty]
{}
[different]
{}
[not_done]
"""
COUNTED = "\n".join(f'{number} = ["a.one"]' for number in range(1, 41))


def written(tmp_path: Path, forty: str = COUNTED, different: str = "") -> Path:
    (tmp_path / "tests/contract").mkdir(parents=True)
    path = tmp_path / "tests/contract/catalogue.toml"
    path.write_text(CATALOGUE.format(forty, different))
    return tmp_path


def test_holders_are_the_files_whose_tests_name_a_behaviour(tmp_path: Path) -> None:
    root = written(tmp_path)
    (root / "tests/test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.contract('a.one')\n"
        "P = pytest.param(1, marks=pytest.mark.contract('a.two', 'a.one'))\n"
    )
    assert conformance.find_tests(root) == {"a.one": {"test_it.py"}, "a.two": {"test_it.py"}}


def test_an_excuse_for_what_is_not_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown behaviours: \['a.three'\]"):
        conformance.read_catalogue(written(tmp_path, different='"a.three" = "why"'))


@pytest.mark.parametrize(
    "forty, words",
    [("1 = []", "from 1 to 40"), (COUNTED.replace("a.one", "x"), "unknown behaviours")],
)
def test_the_forty_are_forty_that_are_listed(tmp_path: Path, forty: str, words: str) -> None:
    root = written(tmp_path, forty)
    with pytest.raises(ValueError, match=words):
        conformance.read_most_missed(root, conformance.read_catalogue(root))


def test_what_nobody_holds_and_what_nobody_knows_are_faults() -> None:
    assert conformance.find_problems([ONE, TWO, LATER], {"a.one": {"x.py"}, "c": {"y.py"}}) == [
        "no test checks a.two",
        "y.py names c, which is not in the catalogue",
    ]


def test_the_table_says_who_holds_what() -> None:
    text = conformance.render([ONE, TWO, LATER], {7: [ONE, TWO]}, {"a.one": {"x.py", "a.py"}})
    assert "3 behaviours: 1 as in Ollama, 1 different on purpose, 1 not done." in text
    assert "| One | PASS | `a.py`, `x.py` |" in text
    assert "| Later | not done: no time |  |" in text
    assert "| 7 | A: One; A: Two | PASS; different: better |" in text


@pytest.mark.parametrize(
    "outcomes, complaint",
    [
        (["", ""], []),
        (["", "<skipped/>"], []),
        (["", "<failure/>"], ["a.one: failure, passed"]),
        (["<error/>"], ["a.one: error"]),
        (["<skipped/>"], ["a.one: skipped"]),
        ([], ["a.one: never ran"]),
    ],
)
def test_a_report_proves_or_does_not(
    tmp_path: Path, outcomes: list[str], complaint: list[str]
) -> None:
    named = '<properties><property name="contract" value="a.one"/></properties>'
    cases = "".join(f"<testcase>{named}{outcome}</testcase>" for outcome in outcomes)
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert conformance.find_unproven(report, [ONE, LATER]) == complaint
