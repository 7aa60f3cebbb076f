"""Write docs/reliability.md from docs/reliability/*.json, or check it; collect these data.

    python -m tools.reliability_page --write | --check | --collect build/system.xml | --print

`make soak` writes soak.json.  `make test-system` collects pytest's report, the figure of
`systemd-analyze security` and the count of bad inputs into system.json.  `--print` measures the
last two again and prints them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from benchmarks.soak.results import SoakResults
from tests.systemd import unit_security
from tools import reliability_tables as tables
from tools.system_report import SystemReport, collect, count_bad_inputs, to_json

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/reliability.md")
SOAK = Path("docs/reliability/soak.json")
SYSTEM = Path("docs/reliability/system.json")


def read(root: Path) -> tuple[SoakResults | None, SystemReport | None]:
    """Return both results, None for one that was never measured.

    Raises msgspec.ValidationError for data of another shape.
    """
    soak, system = root / SOAK, root / SYSTEM
    return (
        msgspec.json.decode(soak.read_bytes(), type=SoakResults) if soak.is_file() else None,
        msgspec.json.decode(system.read_bytes(), type=SystemReport) if system.is_file() else None,
    )


def stale(root: Path) -> bool:
    page = root / PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return text != tables.page(*read(root))


def write(root: Path) -> None:
    (root / PAGE).write_text(tables.page(*read(root)), encoding="utf-8")


def save(root: Path, junit: Path) -> None:
    """Store the results of a test run."""
    (root / SYSTEM).parent.mkdir(parents=True, exist_ok=True)
    (root / SYSTEM).write_bytes(to_json(collect(root, junit)))


def figures() -> int:
    """Print the unit's exposure and the results of the bad inputs; return the exit status."""
    status = unit_security.main()
    found = count_bad_inputs(ROOT)
    print(tables.bad_inputs_words(found))
    return status or int(found is None or not found.is_good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the page")
    mode.add_argument("--check", action="store_true", help="fail where the page differs")
    mode.add_argument("--collect", type=Path, metavar="XML", help="keep a run of the tests")
    mode.add_argument("--print", action="store_true", help="measure and print two figures")
    args = parser.parse_args()
    if args.print:
        return figures()
    if args.check:
        if stale(ROOT):
            print(f"{PAGE} is out of date: run `python -m tools.reliability_page --write`")
            return 1
        return 0
    if args.collect and os.geteuid() != 0:
        print(f"not root: the tests of systemd were skipped, so {SYSTEM} stays as it is")
        return 0
    if args.collect:
        save(ROOT, args.collect)
    write(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
