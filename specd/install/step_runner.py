"""Apply a plan: all of its steps, or none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Self

from specd.errors import InstallError
from specd.install import layout
from specd.install.host_system import HostSystem
from specd.install.steps import Step
from specd.install.systemd_syntax import escape_unprintable

Say = Callable[[str], None]
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


def apply_plan(plan: StepPlan, machine: HostSystem, say: Say) -> None:
    """Apply the plan.  Raises InstallError or KeyboardInterrupt after undoing the steps."""
    with _exclusive_lock(machine), _Signals() as signals:
        reached: list[Step] = []
        try:
            for number, step in enumerate(plan.steps, 1):
                _say_ignoring_errors(
                    say, f"{number}/{len(plan.steps)} {escape_unprintable(step.words)}"
                )
                reached.append(step)
                step.do(machine)
        except (Exception, KeyboardInterrupt) as error:
            signals.is_ignored = True
            left = _undo(reached, machine, say)
            # A bug is undone as well, and then reported as a bug.
            is_ours = isinstance(error, InstallError | OSError)
            if not is_ours and not left:
                raise
            raise InstallError(_failure_message(error, left)) from error
        signals.is_ignored = True
        for step in plan.steps:
            _finish(step, machine, say)


def _undo(reached: list[Step], machine: HostSystem, say: Say) -> list[str]:
    """Undo the steps; return a sentence for each that failed."""
    left = []
    for step in reversed(reached):
        try:
            step.undo(machine)
        except Exception as error:  # noqa: BLE001 - the others are undone all the same
            left.append(f"{escape_unprintable(step.words)}: {error}")
    if not left:
        _say_ignoring_errors(say, "undone: everything is in its earlier state")
    return left


def _failure_message(error: BaseException, left: list[str]) -> str:
    said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    if not left:
        return f"{said}\nNothing was changed: all steps were undone."
    return "\n".join([said, "These steps could not be undone:", *left])


def _finish(step: Step, machine: HostSystem, say: Say) -> None:
    """Clean up after a step.  Leftovers only cost space, and the next run removes them."""
    try:
        step.finish(machine)
    except OSError as error:
        _say_ignoring_errors(say, f"could not be cleaned up: {error}")


def _say_ignoring_errors(say: Say, text: str) -> None:
    """Print the text; a closed terminal must not stop the plan."""
    with contextlib.suppress(OSError):
        say(text)


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
            said = "another `specd install`, `uninstall` or `migrate` is running"
            raise InstallError(said) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # before an installation, or after an uninstall
                folder.rmdir()
    finally:
        os.close(opened)


@dataclass
class _Signals:
    """A handler that lets a signal stop the plan between two steps, but not the cleanup."""

    is_ignored: bool = False
    _former: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for number in _ENDING:
            self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)  # type: ignore[arg-type]

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_ignored:
            self.is_ignored = True  # a second signal must not stop the undo
            raise KeyboardInterrupt
