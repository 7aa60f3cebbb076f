"""A plan, and how it is carried out: all of it, or nothing."""

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
from specd.install.machine import Machine
from specd.install.steps import Step
from specd.install.systemd_text import visible

Say = Callable[[str], None]
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """remarks: what a person should know before.  outcome: what is said when all is done."""

    title: str
    steps: tuple[Step, ...]
    remarks: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The whole plan in words; a number for each step; fit for a terminal."""
        lines = [f"{self.title}:"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"{number:>3}. {step.words}")
            lines += [f"       | {line}" for line in step.details]
        lines += [f"  *  {remark}" for remark in self.remarks]
        return [visible(line) for line in lines]


def carry_out(plan: Plan, machine: Machine, say: Say) -> None:
    """Raises InstallError, or KeyboardInterrupt, when everything is again as it was."""
    with _alone(machine), _Signals() as signals:
        reached: list[Step] = []
        try:
            for number, step in enumerate(plan.steps, 1):
                _quietly(say, f"{number}/{len(plan.steps)} {visible(step.words)}")
                reached.append(step)
                step.do(machine)
        except (Exception, KeyboardInterrupt) as error:
            signals.are_over = True
            left = _undo(reached, machine, say)
            # A bug of ours, too, leaves nothing half-done; as a bug it is told.
            is_ours = isinstance(error, InstallError | OSError)
            if not is_ours and not left:
                raise
            raise InstallError(_account(error, left)) from error
        signals.are_over = True
        for step in plan.steps:
            _finish(step, machine, say)


def _undo(reached: list[Step], machine: Machine, say: Say) -> list[str]:
    """What could not be undone, in words."""
    left = []
    for step in reversed(reached):
        try:
            step.undo(machine)
        except Exception as error:  # noqa: BLE001 - the others are undone all the same
            left.append(f"{visible(step.words)}: {error}")
    if not left:
        _quietly(say, "undone: everything is as it was before")
    return left


def _account(error: BaseException, left: list[str]) -> str:
    said = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    if not left:
        return f"{said}\nNothing was changed: what had been done was undone."
    return "\n".join([said, "These steps could not be undone:", *left])


def _finish(step: Step, machine: Machine, say: Say) -> None:
    """What is left lying costs room, and no more: the next run sweeps it away."""
    try:
        step.finish(machine)
    except OSError as error:
        _quietly(say, f"could not be cleaned up: {error}")


def _quietly(say: Say, text: str) -> None:
    """A terminal that went away ends nothing half-way."""
    with contextlib.suppress(OSError):
        say(text)


@contextlib.contextmanager
def _alone(machine: Machine) -> Iterator[None]:
    """One plan at a time on a machine."""
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
            with contextlib.suppress(OSError):  # where nothing is installed, or no more
                folder.rmdir()
    finally:
        os.close(opened)


@dataclass
class _Signals:
    """A signal ends the plan between any two lines of it, but not what is done thereafter."""

    are_over: bool = False
    _former: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for number in _ENDING:
            self._former[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)  # type: ignore[arg-type]

    def _caught(self, _number: int, _frame: FrameType | None) -> None:
        if not self.are_over:
            self.are_over = True  # a second one must not hit the undoing
            raise KeyboardInterrupt
