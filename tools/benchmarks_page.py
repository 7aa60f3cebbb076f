"""Write docs/benchmarks.md and the README's table from the measurements, or check them.

The bench writes docs/benchmarks/*.json, the simulator benchmarks/simulator/figures.json.
`python -m tools.benchmarks_page --write` after a bench; `--check` fails if a page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.simulator.page import summary
from benchmarks.simulator.report import read
from benchmarks.targets.docs_folder import PAGE, read_all, rendered
from benchmarks.targets.page import END, readme_table
from tools.generated_files import ROOT, find_stale, write_or_check

_BEGIN = "<!-- measured: begin"


def render(root: Path) -> dict[Path, str]:
    """Return repository path → expected content."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    return {
        Path("docs") / PAGE: f"{rendered(root / 'docs')}\n{summary(read())}",
        Path("README.md"): with_table(readme, readme_table(read_all(root / "docs"))),
    }


def with_table(readme: str, table: str) -> str:
    """Return the README with a new table between its markers, or raise ValueError without them."""
    begin, end = readme.index(_BEGIN), readme.index(END)
    return readme[:begin] + table + readme[end + len(END) :]


def stale(root: Path) -> list[Path]:
    """Return the generated files under root that are out of date or missing."""
    return find_stale(root, render(root))


if __name__ == "__main__":
    sys.exit(write_or_check("tools.benchmarks_page", render(ROOT)))
