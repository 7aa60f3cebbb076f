"""Whatever is imported is declared: a fresh environment has it too."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"specd", "benchmarks", "scripts", "tests"}


def normalized(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


EXTRAS = PROJECT["optional-dependencies"]
NEEDED = {normalized(requirement) for requirement in PROJECT["dependencies"]}
FOR_BENCH = NEEDED | {normalized(requirement) for requirement in EXTRAS["bench"]}
FOR_TESTS = NEEDED | {normalized(requirement) for requirement in EXTRAS["dev"]}

#: What has more than the folder around it, which must do without.
BENCH = ROOT / "specd" / "bench"
#: They run before anything is installed.
INSTALLERS = ("install.py", "accelerator.py", "progress.py", "__init__.py")
#: What runs in environments of its own: the demo pair's recipe (torch), the clients of the matrix.
ELSEWHERE = (
    ROOT / "specd" / "demo",
    ROOT / "tests" / "clients" / "programs",
    ROOT / "tests" / "converter" / "programs",
)


def foreign_modules(folder: str) -> Iterator[tuple[str, Path]]:
    """Top-level names that are neither Python's nor ours, each with the file that imports it."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(path.is_relative_to(folder) for folder in ELSEWHERE):
            continue
        if path.is_relative_to(BENCH) and ROOT / folder != BENCH:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names}:
                if name not in sys.stdlib_module_names and name not in OURS:
                    yield name, path


@pytest.mark.parametrize(
    "folder,declared",
    [
        ("specd", NEEDED),
        ("specd/bench", FOR_BENCH),
        ("benchmarks", FOR_TESTS),
        ("scripts", FOR_TESTS),
        ("tests", FOR_TESTS),
    ],
)
def test_what_is_imported_is_declared(folder: str, declared: set[str]) -> None:
    distributions = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for module, path in foreign_modules(folder)
        if not declared & {normalized(name) for name in distributions.get(module, [module])}
    }
    assert missing == set()


def test_what_installs_needs_nothing_installed() -> None:
    imported = [
        f"{path.name} imports {module}"
        for module, path in foreign_modules("scripts")
        if path.parent == ROOT / "scripts" and path.name in INSTALLERS
    ]
    assert imported == []
