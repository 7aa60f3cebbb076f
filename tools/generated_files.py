"""Write generated files, or check that they are up to date: `--write` and `--check`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def find_stale(root: Path, contents: Mapping[Path, str]) -> list[Path]:
    """Return the files that differ or are missing.  contents: path below root → expected text."""
    return [
        path
        for path, text in contents.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def write_or_check(module: str, contents: Mapping[Path, str]) -> int:
    """Do what the command line says and return the exit status.  module: of the generator."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the files")
    mode.add_argument("--check", action="store_true", help="fail if a file differs")
    if parser.parse_args().write:
        for path, text in contents.items():
            (ROOT / path).write_text(text, encoding="utf-8")
        return 0
    stale = find_stale(ROOT, contents)
    for path in stale:
        print(f"{path} is out of date: run `python -m {module} --write`")
    return 1 if stale else 0
