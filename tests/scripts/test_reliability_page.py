"""The page of reliability is made of what pytest reports and of what the tests call themselves."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scripts import reliability_page, reliability_tables, system_report
from scripts.bad_inputs.session import BadInputResults
from scripts.system_report import SystemReport

TESTS = '''"""A disk without room.

More of it.
"""

def test_who_asked_is_told(kind): ...

async def test_what_was_there_stays():
    """Byte by byte."""
'''
REPORT = """<testsuites><testsuite time="61.5">
<testcase classname="tests.faults.test_disk" name="test_what_was_there_stays" time="1.25">
 <properties><property name="writes" value="17"/><property name="contract" value="a"/></properties>
</testcase>
<testcase classname="tests.faults.test_disk" name="test_who_asked_is_told[pull]" time="1"/>
<testcase classname="tests.faults.test_disk" name="test_who_asked_is_told[create]" time="1">
 <failure message="no">no</failure></testcase>
<testcase classname="tests.faults.test_disk" name="test_who_asked_is_told[push]" time="0">
 <skipped message="not root">not root</skipped></testcase>
<testcase classname="tests.faults.test_gone" name="test_it_went" time="0"/>
</testsuite></testsuites>
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests/faults").mkdir(parents=True)
    (tmp_path / "docs/reliability").mkdir(parents=True)
    (tmp_path / "tests/faults/test_disk.py").write_text(TESTS)
    (tmp_path / "system.xml").write_text(REPORT)
    return tmp_path


def report(root: Path, **changed: object) -> SystemReport:
    suites = ET.parse(root / "system.xml").getroot()  # noqa: S314 - ours
    facts: dict[str, object] = {
        "ran": "2030-01-02T03:04+00:00",
        "system": "Linux",
        "python": "3",
        "systemd": "systemd 252",
        "as_root": True,
        "seconds": 61.5,
        "files": list(system_report.read_files(root, suites)),
        "exposure": 1.4,
        "complaints": "",
        "bad_inputs": BadInputResults(
            seed=3,
            total=1000,
            kinds={"a": 600, "b": 400},
            statuses={"a": {"4xx": 600}, "b": {"2xx": 399, "left": 1}},
            seconds=9.0,
        ),
    }
    return SystemReport(**{**facts, **changed})  # type: ignore[arg-type]


def test_a_file_is_told_by_its_docstring_and_its_tests_by_their_names(root: Path) -> None:
    disk, gone = report(root).files
    assert (disk.path, disk.about) == ("tests/faults/test_disk.py", "A disk without room.")
    told, stays = disk.tests
    assert (told.says, told.cases) == ("who asked is told", ["create", "pull", "push"])
    assert (told.passed, told.failed, told.skipped) == (1, 1, {"not root": 1})
    assert (stays.detail, stays.counted, stays.seconds) == ("Byte by byte.", {"writes": 17}, 1.25)
    assert (gone.about, [test.says for test in gone.tests]) == ("", ["it went"])


def test_the_page_says_what_failed_and_what_was_skipped(root: Path) -> None:
    page = reliability_tables.page(None, report(root))
    assert "| **FAIL** | Who asked is told | 2: create, pull, push |" in page
    assert "| PASS | What was there stays. Byte by byte. |  |" in page
    assert "| 1 | not root |" in page
    assert "3 passed, 1 failed, 1 skipped, of 3 tests" in page
    assert "17 writes" in page
    assert "1,000 bad inputs of 2 kinds in 9 s: 0 crashes, 0 unanswered" in page
    assert "| b | 400 | 399 | 0 | 0 | 0 | 1 | 0 |" in page
    assert "`make soak` does it" in page


@pytest.mark.parametrize(
    "changed, line",
    [
        ({"exposure": 2.0}, "| **FAIL** | `systemd-analyze security` of specd.service"),
        ({"complaints": "a typo"}, "| **FAIL** | `systemd-analyze security` of specd.service"),
        ({"exposure": 1.5}, "| PASS | `systemd-analyze security` of specd.service"),
        (
            {"bad_inputs": BadInputResults(seed=0, total=9, unanswered=1)},
            "| **FAIL** | bad inputs never end the daemon",
        ),
    ],
)
def test_a_figure_beyond_its_bound_is_a_failure(
    root: Path, changed: dict[str, object], line: str
) -> None:
    assert line in reliability_tables.page(None, report(root, **changed))


def test_the_page_is_what_its_data_say(root: Path) -> None:
    assert reliability_page.stale(root)
    reliability_page.write(root)
    assert not reliability_page.stale(root)
    data = system_report.to_json(report(root))
    (root / reliability_page.SYSTEM).write_bytes(data)
    assert reliability_page.stale(root)
    reliability_page.write(root)
    assert reliability_page.read(root) == (None, report(root))
    assert not reliability_page.stale(root)


def test_a_cell_with_a_bar_stays_a_cell() -> None:
    assert reliability_tables.table(("a",), [("x|y\nz",)]) == "| a |\n| --- |\n| x\\|y z |\n"
