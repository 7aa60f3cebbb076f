"""Check that pyproject.toml declares every package that the code imports."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.architecture.source_imports import imports_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"specd", "benchmarks", "scripts", "tests", "tools"}


def normalized(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


EXTRAS = PROJECT["optional-dependencies"]
NEEDED = {normalized(requirement) for requirement in PROJECT["dependencies"]}
FOR_BENCH = NEEDED | {normalized(requirement) for requirement in EXTRAS["bench"]}
FOR_TESTS = NEEDED | {normalized(requirement) for requirement in EXTRAS["dev"]}

#: The benchmarks may import an extra's packages, which the rest of specd/ must not.
BENCH = ROOT / "specd" / "bench"
#: Scripts with their own environments: the recipe of the demo pair (torch), clients, converters.
ELSEWHERE = (
    ROOT / "benchmarks" / "demo_pair",
    ROOT / "tests" / "clients" / "programs",
    ROOT / "tests" / "converter" / "programs",
)


def foreign_modules(folder: str) -> Iterator[tuple[str, Path]]:
    """Yield each imported third-party top-level name, and the file that imports it."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(path.is_relative_to(folder) for folder in ELSEWHERE):
            continue
        if path.is_relative_to(BENCH) and ROOT / folder != BENCH:
            continue
        for name in {name.partition(".")[0] for name in imports_of(path)}:
            if name not in sys.stdlib_module_names and name not in OURS:
                yield name, path


@cache
def distributions() -> Mapping[str, list[str]]:
    """Return the distributions that provide each top-level module of this environment."""
    return packages_distributions()


@pytest.mark.parametrize(
    "folder,declared",
    [
        ("specd", NEEDED),
        ("specd/bench", FOR_BENCH),
        ("benchmarks", FOR_TESTS),
        ("tests", FOR_TESTS),
        ("tools", FOR_TESTS),
    ],
)
def test_every_imported_package_is_declared(folder: str, declared: set[str]) -> None:
    missing = {
        f"{path.relative_to(ROOT)} imports {module}"
        for module, path in foreign_modules(folder)
        if not declared & {normalized(name) for name in distributions().get(module, [module])}
    }
    assert missing == set()


def test_the_installer_imports_only_the_standard_library() -> None:
    imported = [f"{path.name} imports {module}" for module, path in foreign_modules("scripts")]
    assert imported == []
