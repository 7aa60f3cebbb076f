"""Write docs/benchmarks.md and the README's table from the measurements, or check them.

The bench writes docs/benchmarks/*.json, the simulator benchmarks/simulator/figures.json.
`python -m scripts.benchmarks_page --write` after a bench; `--check` fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.simulator.page import summary
from benchmarks.simulator.report import read
from benchmarks.targets.docs_folder import PAGE, read_all, rendered
from benchmarks.targets.page import END, readme_table

ROOT = Path(__file__).resolve().parents[1]
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
    """Return the files under root that are out of date or missing."""
    return [
        path
        for path, text in render(root).items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write both files")
    mode.add_argument("--check", action="store_true", help="fail where a file differs")
    if parser.parse_args().write:
        for path, text in render(ROOT).items():
            (ROOT / path).write_text(text, encoding="utf-8")
        return 0
    found = stale(ROOT)
    for path in found:
        print(f"{path} is out of date: run `python -m scripts.benchmarks_page --write`")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
