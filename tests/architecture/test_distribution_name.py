"""Check that no text tells users to install `specd`, which is another project on PyPI."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import specd

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("specd", "scripts", "docs", "configs", "systemd", "tests", "tools")
TEXTS = {".py", ".md", ".toml", ".env", ".service", ".socket", ".yaml", ".json", ".sh", ".conf"}

_EXTRAS = "|".join(PROJECT["optional-dependencies"])
#: Matches specd, but not specd-llm or a path or URL that contains specd.
_OTHER = r"(?<![\w./@-])specd(?![\w./-])"
HINTS = (
    re.compile(
        rf"(?:pip3? install|pipx (?:install|run|inject)|uv (?:tool|pip) install|uv add|uvx)"
        rf"[^\n`]*?{_OTHER}"
    ),
    re.compile(rf"{_OTHER}\[(?:{_EXTRAS})\]"),
    re.compile(rf"""(?:distribution|version|requires|metadata)\(["']{_OTHER}["']\)"""),
)


def texts() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != "uv.lock")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in TEXTS and path != Path(__file__):
                yield path


def test_the_constant_is_the_name_of_the_project() -> None:
    assert PROJECT["name"] == specd.DISTRIBUTION
    assert specd.DISTRIBUTION != "specd"


def test_no_hint_installs_the_other_project() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts()
        for hint in HINTS
        for match in hint.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text,is_other",
    [
        ("pip install specd", True),
        ("pip install 'specd[bench]'", True),
        ("the extra specd[bench] brings one along", True),
        ("pipx install --python 3.12 specd", True),
        ("uv tool install specd", True),
        ('requires("specd")', True),
        ("pip install 'specd-llm[bench]'", False),
        ("pip install /srv/specd", False),
        ("specd['acceptance_rate']", False),
        ("`pip install x`, then `specd serve`", False),
    ],
)
def test_hints_to_install_are_recognized(text: str, is_other: bool) -> None:
    assert any(hint.search(text) for hint in HINTS) is is_other
