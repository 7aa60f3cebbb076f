"""Test the conformance table: tests name behaviours, and their outcomes prove them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import conformance
from tools.conformance import Behaviour

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
[different]
{}
[not_done]
"""


def written(tmp_path: Path, different: str = "") -> Path:
    (tmp_path / "tests/contract").mkdir(parents=True)
    path = tmp_path / "tests/contract/catalogue.toml"
    path.write_text(CATALOGUE.format(different))
    return tmp_path


def test_the_test_files_that_name_a_behaviour_are_found(tmp_path: Path) -> None:
    root = written(tmp_path)
    (root / "tests/test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.contract('a.one')\n"
        "P = pytest.param(1, marks=pytest.mark.contract('a.two', 'a.one'))\n"
    )
    assert conformance.find_tests(root) == {"a.one": {"test_it.py"}, "a.two": {"test_it.py"}}


def test_a_reason_for_an_unknown_behaviour_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown behaviours: \['a.three'\]"):
        conformance.read_catalogue(written(tmp_path, different='"a.three" = "why"'))


def test_untested_and_unknown_behaviours_are_problems() -> None:
    assert conformance.find_problems([ONE, TWO, LATER], {"a.one": {"x.py"}, "c": {"y.py"}}) == [
        "no test checks a.two",
        "y.py names c, which is not in the catalogue",
    ]


def test_the_table_names_the_tests_of_each_behaviour() -> None:
    text = conformance.render([ONE, TWO, LATER], {"a.one": {"x.py", "a.py"}})
    assert "3 behaviours: 1 as in Ollama, 1 different on purpose, 1 not done." in text
    assert "| One | PASS | `a.py`, `x.py` |" in text
    assert "| Two | different: better |  |" in text
    assert "| Later | not done: no time |  |" in text


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
def test_a_report_shows_which_behaviours_are_proven(
    tmp_path: Path, outcomes: list[str], complaint: list[str]
) -> None:
    named = '<properties><property name="contract" value="a.one"/></properties>'
    cases = "".join(f"<testcase>{named}{outcome}</testcase>" for outcome in outcomes)
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert conformance.find_unproven(report, [ONE, LATER]) == complaint
