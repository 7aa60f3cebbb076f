"""`pytest --fast`: run the tests that start no process, load no native code and end quickly.

`slow_modules.txt` lists the modules or folders that `--fast` leaves out: those that start processes
or load native code, those that simulate or compute for long or import a large client library, and
those of the source tree that `make check` runs.  With `--fast`, a test that starts a process fails,
and a property is checked with fewer examples.
`pytest --list-slow FILE` writes the names of the modules of a run that started processes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from functools import cache, wraps
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import is_hypothesis_test, settings

TESTS = Path(__file__).parent
LIST = TESTS / "slow_modules.txt"
T = TypeVar("T")
_NATIVE = "llama_cpp"
#: With --fast, a property gets its number of examples divided by this, but at least the minimum.
_FEWER_EXAMPLES = 10
_MIN_EXAMPLES = 5


#: Mark of a test that computes or imports for more than 0.2 s: --fast leaves it out.
computes_long = pytest.mark.skipif("config.getoption('--fast')", reason="computes for long")


class _Run:
    is_fast = False


_run = _Run()


class ProcessCount:
    """Count the processes that this process starts after `install`."""

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
    """Find the test modules that start processes, and check or write the list."""

    def __init__(self, destination: Path | None) -> None:
        """destination: file for the names of the modules; None makes them fail."""
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
    """Return the path of a test module as in the list, or "" outside of tests/."""
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


@cache
def slow_modules() -> frozenset[str]:
    return frozenset(LIST.read_text().split())


def is_fast() -> bool:
    """Return whether the run has --fast; a loop over many cases may then try fewer."""
    return _run.is_fast


def thinned(cases: Iterable[T], every: int) -> list[T]:
    """Return all cases; with --fast, the first of each `every`."""
    return list(cases)[:: every if is_fast() else 1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="start no process, load no native code")
    parser.addoption("--list-slow", type=Path, help="write the modules that start processes here")


def pytest_configure(config: pytest.Config) -> None:
    destination = config.getoption("--list-slow")
    _run.is_fast = config.getoption("--fast")
    if _run.is_fast:
        os.fsync = lambda fd: None  # no test needs the disk synced
        gc.set_threshold(50_000)  # the collection creates little garbage
    if destination is not None or config.getoption("--fast"):
        config.pluginmanager.register(SlowModules(destination))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True to skip a listed module, or None to leave the decision to pytest."""
    is_left_out = config.getoption("--fast") and module_name(collection_path) in slow_modules()
    return True if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        for item in items:
            _reduce_examples(item)


def _reduce_examples(item: pytest.Item) -> None:
    """Reduce the number of examples if `item` is a property test."""
    case, test = getattr(item, "cls", None), getattr(item, "obj", None)
    if isinstance(getattr(case, "settings", None), settings):  # a state machine
        case.settings = _reduced(case.settings)  # type: ignore[union-attr]
    elif test is not None and is_hypothesis_test(test):
        # Hypothesis offers no other way to change the settings of a decorated test.
        test._hypothesis_internal_use_settings = _reduced(test._hypothesis_internal_use_settings)  # noqa: SLF001 - no public way


def _reduced(given: settings) -> settings:
    n_examples = max(_MIN_EXAMPLES, given.max_examples // _FEWER_EXAMPLES)
    return settings(given, max_examples=min(given.max_examples, n_examples))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--fast"):
        gc.freeze()  # the collected objects live until the end
    if session.config.getoption("--fast") and _NATIVE in sys.modules:
        raise pytest.UsageError(f"a module outside of tests/{LIST.name} imports {_NATIVE}")
