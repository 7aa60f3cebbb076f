"""A failure at any step restores the machine; the next run repairs a killed one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import (
    HostSystem,
    StepPlan,
    apply_plan,
    gather_facts,
    layout,
    plan_install,
    plan_migrate,
    plan_migrate_back,
    plan_uninstall,
    read_ollama_service,
)
from specd.install import plan as install_plan
from specd.install.host_system import CommandFailed
from specd.install.steps import Step, Undo, put_file
from tests.fast import thinned
from tests.install.fake_host_system import FakeHostSystem, write_small_sources

pytestmark = pytest.mark.usefixtures("answering")

Planner = Callable[[FakeHostSystem, Path], StepPlan]


def to_install(machine: FakeHostSystem, sources: Path) -> StepPlan:
    return plan_install(gather_facts(machine), write_small_sources(sources))


def to_update(machine: FakeHostSystem, sources: Path) -> StepPlan:
    apply_plan(to_install(machine, sources), machine, print)
    machine.put(f"{layout.UNITS}/{layout.SERVICE}", "by hand")
    return plan_install(gather_facts(machine), write_small_sources(sources, "two"))


def to_migrate(machine: FakeHostSystem, sources: Path) -> StepPlan:
    return plan_migrate(
        gather_facts(machine), read_ollama_service(machine), write_small_sources(sources)
    )


def to_go_back(machine: FakeHostSystem, sources: Path) -> StepPlan:
    apply_plan(to_migrate(machine, sources), machine, print)
    return plan_migrate_back(gather_facts(machine))


def to_uninstall(machine: FakeHostSystem, sources: Path) -> StepPlan:
    apply_plan(to_migrate(machine, sources), machine, print)
    return plan_uninstall(gather_facts(machine), purges=True)


PLANNERS = (to_install, to_update, to_migrate, to_go_back, to_uninstall)
#: No plan has more.
MOST_STEPS = 24


def failing_step(step: Step, error: BaseException) -> Step:
    """Return a step that changes the machine as `step` does, then fails."""

    def do(machine: HostSystem, undo: Undo) -> None:
        step.do(machine, undo)
        if error.args == ("signal",):
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()  # Python looks at its signals here
        raise error

    return Step(step.words, do)


class ProcessKilled(BaseException):
    """The process is killed: no handler runs."""


def broken(plan: StepPlan, number: int, error: BaseException) -> StepPlan:
    steps = list(plan.steps)
    steps[number] = failing_step(steps[number], error)
    return StepPlan(plan.title, tuple(steps))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        KeyboardInterrupt("signal"),
        LookupError("a bug"),
    ],
)
def test_a_failure_at_any_step_leaves_the_machine_as_it_was(
    with_ollama: FakeHostSystem, tmp_path: Path, planner: Planner, error: BaseException
) -> None:
    plan = planner(with_ollama, tmp_path / "sources")
    before = with_ollama.snapshot()
    assert 5 < len(plan.steps) <= MOST_STEPS
    for number in thinned(range(len(plan.steps)), 4):
        with pytest.raises((InstallError, KeyboardInterrupt, LookupError)):
            apply_plan(broken(plan, number, error), with_ollama, print)
        assert with_ollama.snapshot() == before, plan.steps[number].words


@pytest.mark.parametrize("number", thinned(range(MOST_STEPS), 4))
def test_the_next_run_repairs_a_migration_killed_at_any_step(
    with_ollama: FakeHostSystem, tmp_path: Path, number: int
) -> None:
    before = with_ollama.snapshot()
    plan = to_migrate(with_ollama, tmp_path / "sources")
    if number >= len(plan.steps):
        assert number  # there is no such step
        return
    with pytest.raises(ProcessKilled):
        apply_plan(broken(plan, number, ProcessKilled()), with_ollama, print)
    facts = gather_facts(with_ollama)
    again = plan_migrate(
        facts, read_ollama_service(with_ollama), write_small_sources(tmp_path / "sources")
    )
    apply_plan(again, with_ollama, print)
    assert with_ollama.active == {layout.SERVICE}
    assert [path.name for path in with_ollama.at("/opt").iterdir()] == ["specd"]
    apply_plan(plan_uninstall(gather_facts(with_ollama), purges=True), with_ollama, print)
    after = with_ollama.snapshot()
    made = {"etc/sysusers.d", "etc/tmpfiles.d"}
    assert {path: fact for path, fact in after.items() if path not in made} == before


def test_the_error_lists_steps_that_cannot_be_undone(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    def fail(command: str) -> None:
        if "start specd" in command or "stop" in command:
            raise CommandFailed(f"no {command}")

    plan = to_install(machine, tmp_path / "sources")
    machine.on_command = fail
    with pytest.raises(InstallError, match=r"could not be undone:\nstart specd\.service") as caught:
        apply_plan(plan, machine, print)
    assert "its last words" in str(caught.value)


def interrupted_step(done: list[str]) -> Step:
    """Return a step during whose undo and cleanup a person presses Ctrl-C; `done` lists them."""

    def wait(what: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.getpid()  # Python looks at its signals here
        done.append(what)

    def do(_: HostSystem, undo: Undo) -> None:
        done.append("done")
        undo.add(lambda: wait("undone"))
        undo.add_cleanup(lambda: wait("cleaned up"))

    return Step("wait", do)


def test_an_interrupt_does_not_stop_the_undo(machine: FakeHostSystem) -> None:
    done: list[str] = []
    before = machine.snapshot()
    failing = failing_step(put_file("/etc/y", b""), OSError(28, "No space left on device"))
    steps = (put_file("/etc/x", b""), interrupted_step(done), failing)
    with pytest.raises((InstallError, KeyboardInterrupt)) as caught:
        apply_plan(StepPlan("x", steps), machine, print)
    assert "No space left" in str(caught.value)
    assert done == ["done", "undone"]
    assert machine.snapshot() == before


def test_an_interrupt_does_not_stop_the_cleanup(machine: FakeHostSystem) -> None:
    first: list[str] = []
    last: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):
        apply_plan(StepPlan("x", (interrupted_step(first), interrupted_step(last))), machine, print)
    assert (first, last) == (["done", "cleaned up"], ["done", "cleaned up"])


@pytest.mark.parametrize("last", ["finished", "failed"])
def test_an_interrupt_right_after_the_last_step_undoes_all_steps(
    machine: FakeHostSystem, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    stopped_by_signals = install_plan._stopped_by_signals  # noqa: SLF001

    @contextlib.contextmanager
    def interrupted() -> Iterator[Callable[[], None]]:
        with stopped_by_signals() as ignore_signals:

            def interrupt_first() -> None:
                os.kill(os.getpid(), signal.SIGTERM)
                os.getpid()  # Python looks at its signals here
                ignore_signals()

            yield interrupt_first

    monkeypatch.setattr(install_plan, "_stopped_by_signals", interrupted)
    before = machine.snapshot()
    step = put_file("/etc/x", b"")
    if last == "failed":
        step = failing_step(step, OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        apply_plan(StepPlan("x", (step,)), machine, print)
    assert machine.snapshot() == before


def test_a_closed_terminal_does_not_stop_a_plan(machine: FakeHostSystem, tmp_path: Path) -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    apply_plan(to_install(machine, tmp_path / "sources"), machine, gone)
    assert machine.active == {layout.SERVICE}


def test_a_second_plan_at_the_same_time_is_refused(machine: FakeHostSystem, tmp_path: Path) -> None:
    plan = to_install(machine, tmp_path / "sources")
    refused: list[str] = []

    def another(command: str) -> None:
        if "sysusers" in command:
            with pytest.raises(InstallError, match="is running") as caught:
                apply_plan(plan, machine, print)
            refused.append(str(caught.value))

    machine.on_command = another
    apply_plan(plan, machine, print)
    assert len(refused) == 1
    assert machine.active == {layout.SERVICE}


def test_removing_the_user_is_the_last_step(with_ollama: FakeHostSystem, tmp_path: Path) -> None:
    """Removing a user cannot be undone."""
    apply_plan(to_migrate(with_ollama, tmp_path / "sources"), with_ollama, print)
    facts = replace(gather_facts(with_ollama), has_user=True)
    *before, last = plan_uninstall(facts, purges=True).steps
    assert last.words.startswith("remove the user")
    assert not any("the user" in step.words for step in before)


def test_a_repaired_environment_stays_after_a_failure(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    """An earlier run was killed between the renames; the service needs an environment."""
    apply_plan(to_install(machine, tmp_path / "sources"), machine, print)
    machine.at(layout.ENVIRONMENT).rename(machine.at(layout.FORMER))
    plan = to_install(machine, tmp_path / "sources")
    number = next(i for i, step in enumerate(plan.steps) if step.words.startswith("make "))
    with pytest.raises(InstallError):
        apply_plan(broken(plan, number, OSError(28, "No space left on device")), machine, print)
    assert [path.name for path in machine.at("/opt").iterdir()] == ["specd"]
