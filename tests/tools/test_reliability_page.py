"""Test the reliability page, which is made of pytest's report and test names."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.bad_inputs.session import BadInputResults
from tools import reliability_page, reliability_tables, system_report
from tools.system_report import SystemReport

TESTS = '''"""A full disk.

More of it.
"""

def test_a_pull_gets_http_507(kind): ...

async def test_existing_files_stay():
    """Byte by byte."""
'''
REPORT = """<testsuites><testsuite time="61.5">
<testcase classname="tests.faults.test_disk" name="test_existing_files_stay" time="1.25">
 <properties><property name="writes" value="17"/><property name="contract" value="a"/></properties>
</testcase>
<testcase classname="tests.faults.test_disk" name="test_a_pull_gets_http_507[pull]" time="1"/>
<testcase classname="tests.faults.test_disk" name="test_a_pull_gets_http_507[create]" time="1">
 <failure message="no">no</failure></testcase>
<testcase classname="tests.faults.test_disk" name="test_a_pull_gets_http_507[push]" time="0">
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


def test_a_file_shows_its_docstring_and_its_tests_their_names(root: Path) -> None:
    disk, gone = report(root).files
    assert (disk.path, disk.about) == ("tests/faults/test_disk.py", "A full disk.")
    refused, stays = disk.tests
    assert (refused.says, refused.cases) == (
        "A pull gets HTTP 507",
        ["create", "pull", "push"],
    )
    assert (refused.passed, refused.failed, refused.skipped) == (1, 1, {"not root": 1})
    assert (stays.detail, stays.counted, stays.seconds) == ("Byte by byte.", {"writes": 17}, 1.25)
    assert (gone.about, [test.says for test in gone.tests]) == ("", ["It went"])


def test_the_page_shows_failed_and_skipped_tests(root: Path) -> None:
    page = reliability_tables.page(None, report(root))
    assert "| **FAIL** | A pull gets HTTP 507 | 2: create, pull, push |" in page
    assert "| PASS | Existing files stay. Byte by byte. |  |" in page
    assert "| 1 | not root |" in page
    assert "3 cases of 3 tests passed, 1 failed, 1 skipped" in page
    assert "17 writes" in page
    assert "1,000 bad inputs of 2 kinds in 9 s: 0 crashes, 0 unanswered" in page
    assert "| b | 400 | 399 | 0 | 0 | 0 | 1 | 0 |" in page
    assert "run `make soak`" in page


@pytest.mark.parametrize(
    "changed, line",
    [
        ({"exposure": 2.0}, "| **FAIL** | `systemd-analyze security` of specd.service"),
        ({"complaints": "a typo"}, "| **FAIL** | `systemd-analyze security` of specd.service"),
        ({"exposure": 1.5}, "| PASS | `systemd-analyze security` of specd.service"),
        (
            {"bad_inputs": BadInputResults(seed=0, total=9, unanswered=1)},
            "| **FAIL** | invalid requests never end the daemon",
        ),
    ],
)
def test_a_figure_beyond_its_bound_is_a_failure(
    root: Path, changed: dict[str, object], line: str
) -> None:
    assert line in reliability_tables.page(None, report(root, **changed))


def test_the_page_matches_its_data(root: Path) -> None:
    assert reliability_page.stale(root)
    reliability_page.write(root)
    assert not reliability_page.stale(root)
    data = system_report.to_json(report(root))
    (root / reliability_page.SYSTEM).write_bytes(data)
    assert reliability_page.stale(root)
    reliability_page.write(root)
    assert reliability_page.read(root) == (None, report(root))
    assert not reliability_page.stale(root)


def test_a_bar_in_a_cell_is_escaped() -> None:
    assert reliability_tables.table(("a",), [("x|y\nz",)]) == "| a |\n| --- |\n| x\\|y z |\n"


@pytest.mark.parametrize(
    "name, text",
    [
        ("test_gos_json_is_utf8", "Go's JSON is UTF-8"),
        ("test_systemd_starts_llama_cpp", "systemd starts llama.cpp"),
    ],
)
def test_a_name_becomes_a_sentence(name: str, text: str) -> None:
    assert system_report.sentence(name) == text


def test_generated_parameter_ids_are_only_counted(root: Path) -> None:
    text = (root / "system.xml").read_text()
    (root / "system.xml").write_text(text.replace("[pull]", "[raw0-404]"))
    page = reliability_tables.page(None, report(root))
    assert "| **FAIL** | A pull gets HTTP 507 | 2 |" in page
