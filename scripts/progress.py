"""Show the progress of a long build: an updating line on a terminal, else a line per tenth."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")  # ninja's own count
_PHASES = {
    "Collecting llama": "fetching the source",
    "Installing build dependencies": "preparing the build",
    "*** Configuring CMake": "configuring",
    "*** Making wheel": "packing the wheel",
}


class Progress:
    """A progress display that reads the output lines of pip and ninja."""

    def __init__(
        self, out: TextIO, *, live: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._live = live
        self._clock = clock
        self._started = clock()
        self._phase = ""
        self._tenth = 0

    def feed(self, line: str) -> None:
        if step := _STEP.match(line):
            self._show_step(int(step[1]), int(step[2]))
            return
        for sign, phase in _PHASES.items():
            if sign in line and phase != self._phase:
                self._phase = phase
                self._show(phase, lasting=not self._live)

    def end(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _show_step(self, done: int, total: int) -> None:
        tenth = done * 10 // total if total else 0
        if self._live or tenth > self._tenth:
            self._tenth = tenth
            text = f"compiling [{done}/{total}] {done * 100 // max(total, 1)} %"
            self._show(text, lasting=not self._live)

    def _show(self, text: str, *, lasting: bool) -> None:
        minutes, seconds = divmod(int(self._clock() - self._started), 60)
        shown = f"  {text} ({minutes}:{seconds:02d})"
        self._out.write(f"{shown}\n" if lasting else f"\r{shown}\x1b[K")
        self._out.flush()


def follow(
    command: Sequence[str], environment: Mapping[str, str], log: Path, progress: Progress
) -> int:
    """Run the command, write its output to the log and the display, and return its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    # Two statements, because Python 3.8 must parse this file to report that it is too old.
    with child, log.open("w", encoding="utf-8") as file:
        assert child.stdout is not None
        for line in child.stdout:
            file.write(line)
            file.flush()
            progress.feed(line)
    progress.end()
    return child.returncode
