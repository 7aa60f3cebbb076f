"""`pytest --fast`: leave out the test modules that start processes or load native code.

`slow_modules.txt` lists them, or their folder.  With `--fast`, a test that starts a process all the
same fails.  `pytest --list-slow FILE` writes down which modules of a run started any.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import cache, wraps
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
LIST = TESTS / "slow_modules.txt"
_NATIVE = "llama_cpp"


class ProcessCount:
    """Counts the processes that this process starts, from when it is installed."""

    def __init__(self) -> None:
        self.n_started = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(subprocess.Popen, "__init__", self._counted(subprocess.Popen.__init__))
        patch.setattr(popen_fork.Popen, "__init__", self._counted(popen_fork.Popen.__init__))
        patch.setattr(os, "fork", self._counted(os.fork))

    def _counted(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.n_started += 1
            return start(*args, **kwargs)

        return counted


class SlowModules:
    """Finds the test modules that start processes, and checks or writes the list."""

    def __init__(self, destination: Path | None) -> None:
        """destination: file that they are written to; None: they fail."""
        self._destination = destination
        self._count = ProcessCount()
        self._patch = pytest.MonkeyPatch()
        #: Shared fixtures that started a process; all tests that ask for one of them are slow.
        self._fixtures: set[str] = set()
        self._found: set[str] = set()

    def pytest_sessionstart(self) -> None:
        self._count.install(self._patch)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        before = self._count.n_started
        value = yield
        if self._count.n_started > before and fixturedef.scope != "function":
            self._fixtures.add(fixturedef.argname)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._before = self._count.n_started
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        outcome = yield
        names: list[str] = getattr(item, "fixturenames", [])
        if self._count.n_started > self._before or not self._fixtures.isdisjoint(names):
            self._note(module_name(item.path))
        return outcome

    def _note(self, module: str) -> None:
        self._found.add(module)
        if self._destination is None:
            pytest.fail(f"{module} starts a process: add it to tests/{LIST.name}", pytrace=False)

    def pytest_sessionfinish(self) -> None:
        self._patch.undo()
        if self._destination is not None and self._found:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            path = self._destination.with_name(self._destination.name + worker)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{module}\n" for module in sorted(self._found)))


def module_name(path: Path) -> str:
    """Return the path of a test module as the list has it, or "" outside of tests/."""
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


@cache
def slow_modules() -> frozenset[str]:
    return frozenset(LIST.read_text().split())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="start no process, load no native code")
    parser.addoption("--list-slow", type=Path, help="write the modules that start processes here")


def pytest_configure(config: pytest.Config) -> None:
    destination = config.getoption("--list-slow")
    if destination is not None or config.getoption("--fast"):
        config.pluginmanager.register(SlowModules(destination))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a listed module out; None leaves the decision to pytest."""
    is_left_out = config.getoption("--fast") and module_name(collection_path) in slow_modules()
    return True if is_left_out else None


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--fast") and _NATIVE in sys.modules:
        raise pytest.UsageError(f"a module outside of tests/{LIST.name} imports {_NATIVE}")
