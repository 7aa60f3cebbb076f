"""Check that generated files are up to date and that no file names a developer's machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools import benchmarks_page, conformance, metrics_docs, reliability_page, settings_docs

ROOT = Path(__file__).parents[2]

_TEXT = {".py", ".md", ".toml", ".env", ".json", ".sh", ".service", ".socket", ".conf", ""}
# Home and scratch folders of developers; paths of the service do not match.
_MACHINE = re.compile(r"(?<![\w.~])/(?:root|Users|work|farm|home/[a-z]+|tmp/[a-z])[/\w]")


def tracked_texts() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in _TEXT and path.is_file()]


def test_the_settings_page_and_the_env_file_match_the_declarations() -> None:
    assert settings_docs.stale(ROOT) == []


def test_the_benchmarks_page_and_the_readmes_table_match_the_data() -> None:
    assert benchmarks_page.stale(ROOT) == []


def test_the_reliability_page_matches_its_data() -> None:
    assert not reliability_page.stale(ROOT)


def test_the_metrics_page_matches_the_declarations() -> None:
    assert metrics_docs.stale(ROOT) == []


def test_the_conformance_table_matches_the_tests() -> None:
    assert conformance.stale(ROOT) == []


def test_no_file_names_a_path_of_a_developers_machine() -> None:
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
