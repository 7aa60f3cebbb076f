"""Processes that are killed at a change of the file system: `python -m tests.faults.killed`.

`NAME FOLDER`: FOLDER/before is the initial state.  For n = 1, 2, ... its copy FOLDER/n is edited by
a child (`writers.WRITERS[NAME]`) that is killed at its n-th step, until one finishes.  A second
child, which is not killed, then changes FOLDER/n-again, a copy of what each killed child left.

A step is a call that changes or syncs anything below the folder.  The child is killed before that
call, which is also after the previous call.  A write is also killed in its middle, when half of
its bytes are written.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

CALLS: Final = (
    *("replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"),
    *("fsync", "fdatasync", "truncate", "ftruncate", "chmod", "fchmod", "chown", "utime"),
)
WRITES: Final = ("write", "pwrite")
_MOST_STEPS: Final = 2000


class Death:
    """Kills this process at the n-th step below the folder."""

    def __init__(self, n: int, folder: Path) -> None:
        self._left = n
        self._below = f"{folder.resolve()}/"
        self._lock = threading.Lock()
        self._open = os.open

    def lurk(self) -> None:
        """Count this process's file calls from now on."""
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        for name in WRITES:
            setattr(os, name, self._by_halves(getattr(os, name)))
        os.open = self._opening
        io.open = builtins.open = self._file(io.open)

    def _step(self, what: object) -> None:
        if not self._concerns(what):
            return
        with self._lock:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # until the signal arrives

    def _concerns(self, what: object) -> bool:
        """Return whether the call is about the folder.  what: a path or a file descriptor."""
        try:
            path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else what
        except OSError:
            return False
        return f"{os.path.abspath(path)}/".startswith(self._below)  # type: ignore[call-overload]  # noqa: PTH100 - as it is named, links and all

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(what: object, *others: object, **options: object) -> Any:
            self._step(what)
            return call(what, *others, **options)

        return stepping

    def _by_halves(self, call: Callable[..., int]) -> Callable[..., int]:
        def writing(file: int, data: Any, *offset: int) -> int:
            view = memoryview(data).cast("B")
            half = len(view) // 2
            self._step(file)
            if not half or not self._concerns(file):
                return call(file, view, *offset)
            done = call(file, view[:half], *offset)
            self._step(file)
            return done + call(file, view[half:], *(at + done for at in offset))

        return writing

    def _opening(self, path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            self._step(path)
        return self._open(path, flags, *mode, **options)

    def _file(self, unchanged: Callable[..., IO[Any]]) -> Callable[..., Any]:
        """Return a replacement of `open` whose files write through `os.write`."""

        def opening(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            **options: Any,
        ) -> Any:
            if not set(mode) & set("wax"):
                assert "+" not in mode, "such files are not counted yet"
                return unchanged(file, mode, buffering, encoding, errors, newline, **options)
            opener = (
                None if isinstance(file, int) else lambda path, flags: os.open(path, flags, 0o666)
            )
            raw = _Raw(file, mode.replace("b", ""), opener=opener, **options)
            if buffering == 0:
                return raw
            binary = io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

        return opening


class _Raw(io.FileIO):
    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)


def run(writer: Callable[[Path], None], folder: Path) -> None:
    """Run one writer as the module describes: killed at each step, then run again."""
    for n in range(1, _MOST_STEPS):
        here = _copy(folder / "before", folder / str(n))
        status = _child(writer, here, n)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, f"the writer failed by itself at step {n}"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert _child(writer, _copy(here, folder / f"{n}-again"), 0) == 0, f"again after step {n}"
    raise AssertionError("it never ends")


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, symlinks=True))


def _child(writer: Callable[[Path], None], folder: Path, n: int) -> int:
    """Return the child's wait status.  n: the step at which it is killed; 0 for none."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        # A kill loses no data in the kernel's cache, so a sync counts as a step but does nothing.
        os.fsync = os.fdatasync = _nothing
        if n:
            Death(n, folder).lurk()
        writer(folder)
    except BaseException:  # noqa: BLE001 - a child must not return
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _nothing(fd: object) -> None:
    """Replace `os.fsync`."""


if __name__ == "__main__":
    from tests.faults.writers import WRITERS

    run(WRITERS[sys.argv[1]], Path(sys.argv[2]))
