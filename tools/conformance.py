"""Write the conformance table of `docs/api/ollama.md` from the tests, or check it.

tests/contract/catalogue.toml lists the behaviours; a test names those that it checks with
`@pytest.mark.contract("id", ...)`.  Run `--write` after a change of either.  `--check` fails if
the page differs, a behaviour has no test, or a test names an unknown behaviour.  `--verify REPORT`
fails if, by pytest's JUnit report, a behaviour's tests did not all pass, or none of them ran.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/api/ollama.md")

_BEGIN = "<!-- conformance: begin, written by tools/conformance.py -->\n"
_END = "<!-- conformance: end -->\n"
_SAME = "PASS"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One behaviour of Ollama.  different, not_done: why specd differs, or empty."""

    id: str
    section: str
    text: str
    different: str = ""
    not_done: str = ""

    @property
    def verdict(self) -> str:
        if self.not_done:
            return f"not done: {self.not_done}"
        return f"different: {self.different}" if self.different else _SAME


def read_catalogue(root: Path) -> list[Behaviour]:
    """Return the behaviours in the order of the catalogue.

    Raises ValueError if [different] or [not_done] names an id that no section has.
    """
    data = _data(root)
    different, not_done = data.get("different", {}), data.get("not_done", {})
    found = [
        Behaviour(key, section["title"], text, different.get(key, ""), not_done.get(key, ""))
        for section in data["section"]
        for key, text in section["behaviours"].items()
    ]
    if unknown := {*different, *not_done} - {behaviour.id for behaviour in found}:
        raise ValueError(f"[different] or [not_done] names unknown behaviours: {sorted(unknown)}")
    return found


def _data(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "tests/contract/catalogue.toml").read_text(encoding="utf-8"))


def find_tests(root: Path) -> dict[str, set[str]]:
    """Return the test files, relative to tests/, that name each behaviour."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "tests").rglob("test_*.py")):
        for key in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found[key].add(str(path.relative_to(root / "tests")))
    return found


def _marked(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "contract"
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: not a literal"
                yield str(argument.value)


def find_problems(behaviours: list[Behaviour], tests_of: Mapping[str, set[str]]) -> list[str]:
    """Return one sentence for each behaviour without a test and each unknown id in a test."""
    known = {behaviour.id for behaviour in behaviours}
    unheld = [b.id for b in behaviours if not b.not_done and b.id not in tests_of]
    return [f"no test checks {key}" for key in unheld] + [
        f"{', '.join(sorted(tests_of[key]))} names {key}, which is not in the catalogue"
        for key in sorted(tests_of.keys() - known)
    ]


def render(behaviours: list[Behaviour], tests_of: Mapping[str, set[str]]) -> str:
    lines = [_BEGIN, _summary(behaviours)]
    section = ""
    for behaviour in behaviours:
        if behaviour.section != section:
            section = behaviour.section
            lines.append(
                f"\n### {section}\n| behaviour | result | tests in `tests/` |\n|---|---|---|\n"
            )
        files = ", ".join(f"`{name}`" for name in sorted(tests_of.get(behaviour.id, ())))
        lines.append(f"| {behaviour.text} | {behaviour.verdict} | {files} |\n")
    return "".join([*lines, _END])


def _summary(behaviours: list[Behaviour]) -> str:
    n_different = sum(bool(b.different) for b in behaviours)
    n_not_done = sum(bool(b.not_done) for b in behaviours)
    n_pass = len(behaviours) - n_different - n_not_done
    return (
        f"{len(behaviours)} behaviours: {n_pass} as in Ollama, {n_different} different on purpose,"
        f" {n_not_done} not done.\n"
    )


def rendered(root: Path = ROOT) -> str:
    """Return the whole page with the current table."""
    page = (root / PAGE).read_text(encoding="utf-8")
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    behaviours = read_catalogue(root)
    return head + render(behaviours, find_tests(root)) + tail


def stale(root: Path = ROOT) -> list[str]:
    """Return the problems of the page, one sentence each; empty if it is up to date."""
    problems = find_problems(read_catalogue(root), find_tests(root))
    if (root / PAGE).read_text(encoding="utf-8") != rendered(root):
        problems.append(f"{PAGE} is out of date: run `python -m tools.conformance --write`")
    return problems


def find_unproven(report: Path, behaviours: list[Behaviour]) -> list[str]:
    """Return the behaviours whose tests failed or were all skipped in a JUnit report."""
    outcomes: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own test run
        outcome = next(
            (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None),
            "passed",
        )
        for entry in case.iter("property"):
            if entry.get("name") == "contract":
                outcomes[entry.get("value", "")].add(outcome)
    return [
        f"{b.id}: {', '.join(sorted(outcomes[b.id])) or 'never ran'}"
        for b in behaviours
        if not b.not_done
        and ("passed" not in outcomes[b.id] or outcomes[b.id] & {"failure", "error"})
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the table")
    mode.add_argument("--check", action="store_true", help="fail if the page is out of date")
    mode.add_argument("--verify", type=Path, metavar="REPORT", help="compare with a JUnit report")
    arguments = parser.parse_args()
    if arguments.write:
        (ROOT / PAGE).write_text(rendered(), encoding="utf-8")
        problems = find_problems(read_catalogue(ROOT), find_tests(ROOT))
    elif arguments.check:
        problems = stale()
    else:
        problems = find_unproven(arguments.verify, read_catalogue(ROOT))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
