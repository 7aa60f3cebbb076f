"""Apply a plan: all of its steps, or none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from specd.errors import InstallError
from specd.install import layout
from specd.install.host_system import HostSystem
from specd.install.steps import Step, Undo
from specd.install.systemd_syntax import escape_unprintable

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class StepPlan:
    """The steps with remarks to read before, and an outcome to print afterwards."""

    title: str
    steps: tuple[Step, ...]
    remarks: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan as printable lines, with a number per step."""
        lines = [f"{self.title}:"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"{number:>3}. {step.words}")
            lines += [f"       | {line}" for line in step.details]
        lines += [f"  *  {remark}" for remark in self.remarks]
        return [escape_unprintable(line) for line in lines]


def apply_plan(plan: StepPlan, machine: HostSystem, say: Callable[[str], None]) -> None:
    """Apply the plan.  Raises InstallError or KeyboardInterrupt after undoing the steps."""

    def report(text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not stop the plan
            say(escape_unprintable(text))

    undo = Undo()
    with _exclusive_lock(machine), _stopped_by_signals() as ignore_signals:
        try:
            try:
                for number, step in enumerate(plan.steps, 1):
                    report(f"{number}/{len(plan.steps)} {step.words}")
                    undo.step = step.words
                    step.do(machine, undo)
            finally:
                ignore_signals()  # a signal just before this also undoes the steps
        except (Exception, KeyboardInterrupt) as error:
            failures = undo.revert()
            if not failures:
                report("undone: everything is in its earlier state")
            if not failures and not isinstance(error, InstallError | OSError):
                raise  # a bug is reported as a bug
            raise InstallError(_failure_message(error, failures)) from error
        for failure in undo.clean_up():
            report(f"could not be cleaned up: {failure}")


def _failure_message(error: BaseException, failures: list[str]) -> str:
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    if not failures:
        return f"{reason}\nNothing was changed: all steps were undone."
    lines = map(escape_unprintable, failures)
    return "\n".join([reason, "These steps could not be undone:", *lines])


@contextlib.contextmanager
def _exclusive_lock(machine: HostSystem) -> Iterator[None]:
    """Allow one plan at a time on a machine."""
    folder = machine.at(layout.RECORD).parent
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            another = "another `specd install`, `uninstall` or `migrate` is running"
            raise InstallError(another) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # before an installation, or after an uninstall
                folder.rmdir()
    finally:
        os.close(opened)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], None]]:
    """Let the first signal raise KeyboardInterrupt; yield a function that ignores all signals.

    A second signal must not stop the undo.
    """
    is_ignored = False

    def ignore_signals() -> None:
        nonlocal is_ignored
        is_ignored = True

    def on_signal(*_: object) -> None:
        if not is_ignored:
            ignore_signals()
            raise KeyboardInterrupt

    former = {number: signal.signal(number, on_signal) for number in _ENDING}
    try:
        yield ignore_signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
