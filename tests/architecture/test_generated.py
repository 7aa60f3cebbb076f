"""What is generated from the code is up to date, and nothing names the machine it was made on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools import benchmarks_page, conformance, metrics_docs, reliability_page, settings_docs

ROOT = Path(__file__).parents[2]

_TEXT = {".py", ".md", ".toml", ".env", ".json", ".sh", ".service", ".socket", ".conf", ""}
# Homes and scratch folders of whoever wrote the code; a service's own paths are not among them.
_MACHINE = re.compile(r"(?<![\w.~])/(?:root|Users|work|farm|home/[a-z]+|tmp/[a-z])[/\w]")


def tracked_texts() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in _TEXT and path.is_file()]


def test_the_settings_page_and_the_env_file_are_what_the_declarations_say() -> None:
    assert settings_docs.stale(ROOT) == []


def test_the_benchmarks_page_and_the_readmes_table_are_what_the_data_say() -> None:
    assert benchmarks_page.stale(ROOT) == []


def test_the_page_of_reliability_is_what_the_data_say() -> None:
    assert not reliability_page.stale(ROOT)


def test_the_page_of_metrics_is_what_the_declarations_say() -> None:
    assert metrics_docs.stale(ROOT) == []


def test_the_conformance_table_is_what_the_tests_name() -> None:
    assert conformance.stale(ROOT) == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    if not (ROOT / ".git").exists():
        return  # an unpacked source distribution
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_texts()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _MACHINE.search(line)
    ]
    assert found == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
