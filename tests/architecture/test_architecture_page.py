"""Check docs/ARCHITECTURE.md against the repository: its length, its files and its packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`([\w./-]+\.\w+)`", PAGE)))
FOLDERS = sorted(set(re.findall(r"`([\w./-]+)/`", PAGE)))


def exists(name: str) -> bool:
    return (ROOT / name).exists() or (ROOT / "specd" / name).exists()


@pytest.mark.parametrize("name", FILES + FOLDERS)
def test_every_file_that_the_page_names_exists(name: str) -> None:
    assert exists(name)


def test_every_step_of_a_request_names_its_files() -> None:
    table = PAGE.split("## The life of a request")[1].split("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if re.match(r"\| \d+ \|", row)]
    assert len(rows) >= 10
    assert all(re.search(r"`[\w/]+\.py`", files) for _, _, _, files, *_ in rows)


def test_every_package_is_described() -> None:
    table = PAGE.split("## Packages of `specd/`")[1].split("\n\n")[0]
    described = set(
        re.findall(r"`(\w+)`", "\n".join(r.split("|")[1] for r in table.splitlines()[3:]))
    )
    packages = {path.stem for path in (ROOT / "specd").glob("[!_]*.py")}
    packages |= {path.parent.name for path in (ROOT / "specd").glob("*/__init__.py")}
    assert packages <= described


def test_the_page_stays_short() -> None:
    assert len(PAGE.splitlines()) <= 120
