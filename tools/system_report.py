"""Collect the results of `make test-system`: docs/reliability/system.json.

The tests are the source: a test's name is a sentence on what a client sees, a file's docstring
says what goes wrong in it, and the parameter ids say which cases.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.bad_inputs.session import BadInputResults
from tests.systemd import unit_security

_CASE = re.compile(r"^(?P<name>[^\[]+)(?:\[(?P<id>.*)\])?$", re.DOTALL)
#: Properties of a test that are not counts.
_NO_COUNTS = frozenset({"contract"})
#: Words as test names have them → as a text has them.
_SPELLING = {
    "api": "API",
    "drop in": "drop-in",
    "gbnf": "GBNF",
    "go": "Go",
    "gos": "Go's",
    "gpu": "GPU",
    "gpus": "GPUs",
    "half closed": "half-closed",
    "half open": "half-open",
    "http": "HTTP",
    "http10": "HTTP/1.0",
    "ipv6": "IPv6",
    "json": "JSON",
    "llama cpp": "llama.cpp",
    "mib": "MiB",
    "ollama": "Ollama",
    "python": "Python",
    "read only": "read-only",
    "sigkill": "SIGKILL",
    "tcp": "TCP",
    "unix": "Unix",
    "url": "URL",
    "utf8": "UTF-8",
}
#: Names that are written in lower case at the start of a sentence too.
_LOWER_CASE = ("llama.cpp", "specd", "systemctl", "systemd")


@dataclass(slots=True, kw_only=True)
class Test:
    """All cases of one test function.  counted: sums of the properties that it recorded."""

    name: str
    says: str
    detail: str = ""
    cases: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class TestFile:
    """A test file.  about: the first sentence of its docstring."""

    path: str
    about: str
    tests: list[Test] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """The report.  exposure: of the unit, 0 to 10; None without systemd.  complaints: systemd's."""

    ran: str
    system: str
    python: str
    systemd: str
    as_root: bool
    seconds: float
    files: list[TestFile]
    exposure: float | None
    complaints: str
    bad_inputs: BadInputResults | None


def collect(root: Path, junit: Path) -> SystemReport:
    """Read pytest's report, and measure the unit and the bad inputs again.

    Raises OSError and ValueError.
    """
    suites = ET.parse(junit).getroot()  # noqa: S314 - pytest wrote it
    has_systemd = shutil.which("systemd-analyze") is not None
    return SystemReport(
        ran=datetime.now(UTC).isoformat(timespec="minutes"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        systemd=_systemd_version(),
        as_root=os.geteuid() == 0,
        seconds=round(sum(float(suite.get("time", 0)) for suite in suites.iter("testsuite")), 1),
        files=list(read_files(root, suites)),
        exposure=unit_security.exposure() if has_systemd else None,
        complaints=unit_security.complaints() if has_systemd else "",
        bad_inputs=count_bad_inputs(root),
    )


def to_json(report: SystemReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report)) + b"\n"


def count_bad_inputs(root: Path) -> BadInputResults | None:
    """Send all bad inputs to a separate daemon.  Return None if they could not be sent."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bad_inputs", "--json"],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        return msgspec.json.decode(done.stdout, type=BadInputResults)
    except msgspec.DecodeError:
        return None


def _systemd_version() -> str:
    if shutil.which("systemctl") is None:
        return ""
    done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[0]


# --------------------------------------------------------------------------- pytest's report


def read_files(root: Path, suites: ET.Element) -> Iterator[TestFile]:
    """Yield the files by path; files that no longer exist are skipped."""
    cases: dict[str, list[ET.Element]] = {}
    for case in suites.iter("testcase"):
        cases.setdefault(case.get("classname", ""), []).append(case)
    for module in sorted(cases):
        path = root / (module.replace(".", "/") + ".py")
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        yield TestFile(
            path=str(path.relative_to(root)),
            about=_first_sentence(ast.get_docstring(tree)),
            tests=read_tests(tree, cases[module]),
        )


def read_tests(tree: ast.Module, cases: list[ET.Element]) -> list[Test]:
    """Return the tests in the order of the file."""
    functions = {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    tests: dict[str, Test] = {}
    for case in cases:
        found = _CASE.match(case.get("name", ""))
        assert found is not None
        name = found["name"]
        test = tests.setdefault(
            name, Test(name=name, says=sentence(name), detail=_one_line(functions.get(name, "")))
        )
        _count(test, case, found["id"])
    order = {name: place for place, name in enumerate(functions)}
    for test in tests.values():
        test.cases.sort()
    return sorted(tests.values(), key=lambda test: order.get(test.name, len(order)))


def _count(test: Test, case: ET.Element, case_id: str | None) -> None:
    test.seconds = round(test.seconds + float(case.get("time", 0)), 2)
    if case_id is not None:
        test.cases.append(case_id)
    skipped = case.find("skipped")
    if skipped is not None:
        reason = skipped.get("message", "")
        test.skipped[reason] = test.skipped.get(reason, 0) + 1
    elif case.find("failure") is not None or case.find("error") is not None:
        test.failed += 1
    else:
        test.passed += 1
    for each in case.iter("property"):
        key, value = each.get("name", ""), each.get("value", "")
        if key not in _NO_COUNTS and value.isdecimal():
            test.counted[key] = test.counted.get(key, 0) + int(value)


def sentence(name: str) -> str:
    """Return the test's name as text: `test_bad_json_is_refused` → "Bad JSON is refused"."""
    text = name.removeprefix("test_").replace("_", " ")
    for words, spelling in _SPELLING.items():
        text = re.sub(rf"\b{words}\b", spelling, text)
    return text if text.startswith(_LOWER_CASE) else text[:1].upper() + text[1:]


def _first_sentence(text: str | None) -> str:
    return _one_line((text or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())
