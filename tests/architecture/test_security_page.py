"""Holds the limits of docs/security.md against the code."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
UNITS = {"": 1, "s": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "MB": 10**6}
ROW = re.compile(r"\| [^|]+ \| ([\d,]+) ?(\w*) \| `([\w/]+)\.py: ([\w.]+)` \|")


def rows() -> list[tuple[int, str, str]]:
    """The figure, and where it stands: module and name."""
    limits = PAGE.read_text(encoding="utf-8").partition("## Limits")[2].partition("\n## ")[0]
    table = [line for line in limits.splitlines() if line.startswith("| ")][1:]
    found = []
    for line in table:
        row = ROW.fullmatch(line)
        assert row is not None, line
        figure = int(row[1].replace(",", "")) * UNITS[row[2]]
        found.append((figure, f"specd.{row[3].replace('/', '.')}", row[4]))
    return found


@pytest.mark.parametrize("figure, module, name", rows())
def test_a_limit_is_what_the_page_says(figure: int, module: str, name: str) -> None:
    value: object = reduce(getattr, name.split("."), importlib.import_module(module))
    assert value == figure


def test_the_page_has_a_row_for_what_a_request_may_have() -> None:
    named = {name for _, _, name in rows()}
    assert {"MAX_BODY_BYTES", "MAX_CHARACTERS", "MAX_FILES", "MAX_STOPS", "MAX_DEPTH"} <= named
