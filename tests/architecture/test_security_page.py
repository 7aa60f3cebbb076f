"""Compare the limits in docs/security.md with the code."""

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
    """Return each limit's figure, and the module and name of its constant."""
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
def test_a_limit_matches_the_page(figure: int, module: str, name: str) -> None:
    value: object = reduce(getattr, name.split("."), importlib.import_module(module))
    assert value == figure


def test_the_page_lists_the_limits_of_a_request() -> None:
    named = {name for _, _, name in rows()}
    assert {"MAX_BODY_BYTES", "MAX_CHARACTERS", "MAX_FILES", "MAX_STOPS", "MAX_DEPTH"} <= named
