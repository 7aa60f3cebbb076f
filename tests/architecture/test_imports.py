"""Check every import against the table in docs/ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source_imports import imports_of

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
    "cli/create_files.py": {"converter", "pairs", "store"},
    "cli/doctor.py": {"doctor"},
    "cli/audit.py": {"doctor"},
    "cli/pairs_show.py": {"pairs", "placement", "runner", "store"},
    "cli/pairs_edit.py": {"pairs", "store"},
    "cli/pairs_suggest.py": {"pairs", "store"},
}


def read_table() -> dict[str, frozenset[str]]:
    """Return the packages that each package may import, from the page's table."""
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
    # The page allows these imports to single commands only.
    allowed["cli"] = allowed["cli"] - frozenset().union(*COMMANDS.values())
    return allowed


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PACKAGES = {package_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}


def allowed_for(path: Path, table: dict[str, frozenset[str]]) -> frozenset[str]:
    package = package_of(path)
    own = {package} | COMMANDS.get(str(path.relative_to(PACKAGE)), set())
    return table[package] | own


FILES = sorted(p for p in PACKAGE.rglob("*.py") if package_of(p) not in {"__init__", "__main__"})


def test_packages_import_only_what_the_table_allows() -> None:
    table = read_table()
    not_allowed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in imports_of(path)
        if name.startswith("specd.")
        and (package := name.split(".")[1]) in PACKAGES
        and package not in allowed_for(path, table)
    ]
    assert not_allowed == []


def test_only_engine_llama_imports_llama_cpp() -> None:
    importers = {
        str(path.parent.relative_to(PACKAGE))
        for path in FILES
        if any(name.split(".")[0] == "llama_cpp" for name in imports_of(path))
    }
    assert importers == {"engine/llama"}


def test_only_the_daemons_composition_and_the_bench_import_a_concrete_engine() -> None:
    """Other code uses the Protocols of `runner/engine.py`, so a new engine does not change it."""
    concrete = {"process", "client", "Process", "EngineClient"}
    importers = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for module, _, name in (imported.rpartition(".") for imported in imports_of(path))
        if package_of(path) != "runner"
        and module.startswith("specd.runner")
        and not concrete.isdisjoint({name, module.rpartition(".")[2]})
    }
    assert importers == {"daemon/app.py", "bench/measure.py"}


def test_every_package_of_the_tree_is_in_the_table() -> None:
    assert set(read_table()) >= PACKAGES


def test_dialects_do_not_import_each_other() -> None:
    dialects = ("ollama", "openai", "anthropic", "llama_server")
    for path in (PACKAGE / "api").rglob("*.py"):
        parts = path.relative_to(PACKAGE / "api").parts
        if parts[0] not in dialects:
            continue
        others = {f"specd.api.{d}" for d in dialects if d != parts[0]}
        for name in imports_of(path):
            assert not any(name.startswith(other) for other in others), f"{path}: {name}"


FOLDERS = frozenset({"specd", "scripts", "benchmarks", "tools", "tests"})
#: Path prefix → the other folders that its files may import; the longest prefix counts.
FOLDER_IMPORTS = {
    "specd": set(),
    "scripts": set(),
    "benchmarks": {"specd", "scripts", "tools"},
    "tools": {"specd", "scripts", "benchmarks", "tests"},
    "tests": {"specd", "tools"},
    "tests/scripts": {"scripts"},
    "tests/tools": {"specd", "scripts", "benchmarks", "tools"},
    "tests/benchmarks": {"specd", "scripts", "benchmarks", "tools"},
    "tests/engine/llama/test_memory.py": {"specd", "benchmarks"},
    "tests/fakes/timed_engine.py": {"specd", "benchmarks"},
}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_folder_imports_only_the_folders_that_it_may(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        rule = max((key for key in FOLDER_IMPORTS if name.startswith(key)), key=len)
        for imported in imports_of(path):
            # Benchmarks write their models with the tests' GGUF writers.
            if folder == "benchmarks" and imported.startswith("tests.gguf_"):
                continue
            other = imported.split(".")[0]
            if other in FOLDERS - {folder}:
                assert other in FOLDER_IMPORTS[rule], f"{name} imports {imported}"


def test_no_file_is_longer_than_400_lines() -> None:
    """A longer file probably has two purposes."""
    long = {
        str(p.relative_to(ROOT)): n
        for p in PACKAGE.rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
