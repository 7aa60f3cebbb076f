"""Checks every import against the table in docs/ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "specd"
BASE = frozenset(
    {
        "worker_pool",
        "core",
        "daemon_address",
        "durations",
        "errors",
        "go_json_encoder",
        "options",
        "settings",
    }
)

COMMANDS = {
    "cli/serve.py": {"daemon"},
    "cli/bench.py": {"bench"},
    "cli/install.py": {"install"},
    "cli/create_body.py": {"converter"},
    "cli/create_convert.py": {"converter"},
    "cli/create_files.py": {"pairs", "store"},
    "cli/doctor.py": {"doctor"},
    "cli/audit.py": {"doctor"},
    "cli/pairs_show.py": {"pairs", "placement", "runner", "store"},
    "cli/pairs_edit.py": {"pairs", "store"},
    "cli/pairs_suggest.py": {"pairs", "store"},
    "cli/pairs_table.py": {"pairs"},
}


def read_table() -> dict[str, frozenset[str]]:
    """Packages → the packages they may import, as the page's table says."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    table = page.split("| package | may import |")[1].split("\n\n")[0]
    allowed: dict[str, frozenset[str]] = {}
    for row in table.splitlines()[2:]:
        packages, imports = (cell.strip() for cell in row.strip("|").split("|"))
        words = set(re.findall(r"[a-z_]+", re.sub(r"\(.*?\)", "", imports)))
        names = (words & PACKAGES) | (BASE if "base" in words else frozenset())
        if "everything except engine" in imports:
            names = PACKAGES - {"engine"}
        for package in packages.split(","):
            allowed[package.strip()] = frozenset(names)
    # What the page allows one command only.
    allowed["cli"] = allowed["cli"] - frozenset().union(*COMMANDS.values())
    return allowed


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PACKAGES = {package_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names that the file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def allowed_for(path: Path, table: dict[str, frozenset[str]]) -> frozenset[str]:
    package = package_of(path)
    own = {package} | COMMANDS.get(str(path.relative_to(PACKAGE)), set())
    return table[package] | own


FILES = sorted(p for p in PACKAGE.rglob("*.py") if package_of(p) not in {"__init__", "__main__"})


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_package_imports_only_what_the_table_allows(path: Path) -> None:
    allowed = allowed_for(path, read_table())
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "specd" and len(parts) > 1 and parts[1] in PACKAGES:
            assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_llama_cpp_is_imported_in_one_package_alone(path: Path) -> None:
    # The recipe of the demo pair is run by hand, never imported.
    if "engine/llama" in path.as_posix() or package_of(path) == "demo":
        return
    assert not any(name.split(".")[0] == "llama_cpp" for name in imports_of(path))


def test_every_package_of_the_tree_is_in_the_table() -> None:
    assert set(read_table()) >= PACKAGES


def test_dialects_do_not_know_each_other() -> None:
    dialects = ("ollama", "openai", "anthropic", "llama_server")
    for path in (PACKAGE / "api").rglob("*.py"):
        parts = path.relative_to(PACKAGE / "api").parts
        if parts[0] not in dialects:
            continue
        others = {f"specd.api.{d}" for d in dialects if d != parts[0]}
        for name in imports_of(path):
            assert not any(name.startswith(other) for other in others), f"{path}: {name}"


def test_no_file_is_longer_than_400_lines() -> None:
    """Check the limit of 400 lines: a longer file probably holds two things."""
    long = {
        str(p.relative_to(ROOT)): n
        for p in PACKAGE.rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
