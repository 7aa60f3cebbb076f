"""Whatever goes wrong, at whichever step: the machine is as before, or the next run repairs it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
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
from specd.install.host_system import CommandFailed
from specd.install.steps import PutFile, Step
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


class FailingStep(Step):
    """Does what it should, then fails."""

    def __init__(self, step: Step, error: BaseException) -> None:
        self.step = step
        self.error = error

    @property
    def words(self) -> str:
        return self.step.words

    def do(self, machine: HostSystem) -> None:
        self.step.do(machine)
        if self.error.args == ("signal",):
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()  # Python looks at its signals here
        raise self.error

    def undo(self, machine: HostSystem) -> None:
        self.step.undo(machine)


class ProcessKilled(BaseException):
    """No code of ours runs any more."""


def broken(plan: StepPlan, number: int, error: BaseException) -> StepPlan:
    steps = list(plan.steps)
    steps[number] = FailingStep(steps[number], error)
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
    for number in range(len(plan.steps)):
        with pytest.raises((InstallError, KeyboardInterrupt, LookupError)):
            apply_plan(broken(plan, number, error), with_ollama, print)
        assert with_ollama.snapshot() == before, plan.steps[number].words


@pytest.mark.parametrize("number", range(MOST_STEPS))
def test_what_was_killed_at_any_step_is_repaired_by_the_next_run(
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


def test_what_cannot_be_undone_is_said(machine: FakeHostSystem, tmp_path: Path) -> None:
    def fail(command: str) -> None:
        if "start specd" in command or "stop" in command:
            raise CommandFailed(f"no {command}")

    plan = to_install(machine, tmp_path / "sources")
    machine.on_command = fail
    with pytest.raises(InstallError, match=r"could not be undone:\nstart specd\.service") as caught:
        apply_plan(plan, machine, print)
    assert "its last words" in str(caught.value)


class InterruptedStep(Step):
    """A person is impatient while it is undone, or when all is done."""

    words = "wait"

    def __init__(self) -> None:
        self.told: list[str] = []

    def do(self, machine: HostSystem) -> None:
        self.told.append("done")

    def undo(self, machine: HostSystem) -> None:
        self._wait("undone")

    def finish(self, machine: HostSystem) -> None:
        self._wait("finished")

    def _wait(self, what: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.getpid()  # Python looks at its signals here
        self.told.append(what)


def test_an_interrupt_does_not_cut_short_the_undoing(machine: FakeHostSystem) -> None:
    file, waits = PutFile("/etc/x", b""), InterruptedStep()
    before = machine.snapshot()
    failing = FailingStep(PutFile("/etc/y", b""), OSError(28, "No space left on device"))
    with pytest.raises((InstallError, KeyboardInterrupt)) as caught:
        apply_plan(StepPlan("x", (file, waits, failing)), machine, print)
    assert "No space left" in str(caught.value)
    assert waits.told == ["done", "undone"]
    assert machine.snapshot() == before


def test_an_interrupt_does_not_cut_short_what_is_done(machine: FakeHostSystem) -> None:
    first, last = InterruptedStep(), InterruptedStep()
    with contextlib.suppress(KeyboardInterrupt):
        apply_plan(StepPlan("x", (first, last)), machine, print)
    assert (first.told, last.told) == (["done", "finished"], ["done", "finished"])


def test_a_terminal_that_went_away_ends_nothing(machine: FakeHostSystem, tmp_path: Path) -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    apply_plan(to_install(machine, tmp_path / "sources"), machine, gone)
    assert machine.active == {layout.SERVICE}


def test_two_at_a_time_are_one_too_many(machine: FakeHostSystem, tmp_path: Path) -> None:
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


def test_the_user_goes_when_nothing_can_fail_any_more(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    """No step brings a user back."""
    apply_plan(to_migrate(with_ollama, tmp_path / "sources"), with_ollama, print)
    facts = replace(gather_facts(with_ollama), has_user=True)
    *before, last = plan_uninstall(facts, purges=True).steps
    assert last.words.startswith("remove the user")
    assert not any("the user" in step.words for step in before)
