"""Read lines and messages of several lines from a terminal, with editing and history."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

FENCE: Final = '"""'
HISTORY_FILE: Final = "prompts"
_MAX_HISTORY = 1000
#: Commands that may precede the fence of a text of several lines.
_BEFORE_FENCE: Final = {"", "/set system"}


class Keyboard:
    """The terminal's keyboard, with line editing.

    history: a file that only its owner can read; None keeps the history for this session only.
    """

    def __init__(self, history: Path | None = None) -> None:
        self.remembers = True
        self._history = history
        self._readline = _readline()
        if self._readline is not None:
            self._readline.set_auto_history(False)
            for line in self._read_history():
                self._readline.add_history(line)

    def read_line(self, prompt: str) -> str:
        """Return a line, like `input`.

        Ctrl-C raises KeyboardInterrupt at once; asyncio would delay it until Enter.
        """
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = input(prompt)
        finally:
            signal.signal(signal.SIGINT, before)
        if self.remembers and line.strip():
            self._remember(line)
        return line

    def _remember(self, line: str) -> None:
        if self._readline is None:
            return
        self._readline.add_history(line)
        if self._history is not None:
            with contextlib.suppress(OSError):  # history is optional: ignore errors
                _append(self._history, line)

    def _read_history(self) -> list[str]:
        if self._history is None:
            return []
        try:
            lines = self._history.read_text(encoding="utf-8", errors="replace").splitlines()
            if len(lines) > 2 * _MAX_HISTORY:
                lines = lines[-_MAX_HISTORY:]
                shorter = self._history.with_suffix(f".{os.getpid()}")
                _append(shorter, "\n".join(lines))
                shorter.replace(self._history)
        except OSError:
            return []
        return lines[-_MAX_HISTORY:]


def read_message(read_line: Callable[[str], str], hint: Callable[[], None]) -> str | None:
    """Return a message, which may span lines between triple quotes; None at the end of the input.

    Ctrl-C drops the message, and calls `hint` to say how to leave.
    """
    while True:
        try:
            head, fence, rest = read_line(">>> ").partition(FENCE)
            if not fence or head.strip() not in _BEFORE_FENCE:
                return head + fence + rest
            lines = [rest]
            while not lines[-1].rstrip().endswith(FENCE):
                lines.append(read_line("... "))
            return head + "\n".join(lines).rstrip().removesuffix(FENCE)
        except KeyboardInterrupt:
            hint()
        except EOFError:
            return None


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _append(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as opened:
        opened.write(f"{line}\n")
