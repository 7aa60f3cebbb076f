"""The operating-system process of a peer and its output.

`python -m specd.bench.peer_process PARENT COMMAND ...` runs a peer that dies with its parent, whose
process id PARENT is.  The kernel setting survives the exec of COMMAND.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from specd.ipc.parent_death import die_with_parent
from specd.runner.environment import THREAD_DEFAULTS

_N_LAST_LINES = 200
_MAX_LINE_BYTES = 4096
_EXIT_MESSAGE_S = 1.0
#: Errors in llama.cpp's log (time, level, source, text) and those printed before it has a log.
_ERROR = re.compile(r"(?:[\d.]+ E )(?P<logged>.*)|(?P<printed>error\b.*)")
_FIXED = {"GGML_NO_BACKTRACE": "1"}


class PeerProcess:
    """A running server.  Its last lines of output explain how it ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_N_LAST_LINES)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> PeerProcess:
        """Start the process.  command: an absolute path and arguments.  Raises OSError."""
        # The command line alone configures the server.
        ours = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
        child = [sys.executable, "-m", "specd.bench.peer_process", str(os.getpid())]
        process = await asyncio.create_subprocess_exec(
            *child,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**THREAD_DEFAULTS, **ours, **environment, **_FIXED},
            # Its own process group: Ctrl-C reaches the bench alone, which then kills the server.
            process_group=0,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        await self._process.wait()
        # A grandchild may keep the pipe open for ever, so wait for its output only briefly.
        await asyncio.wait({self._listening}, timeout=_EXIT_MESSAGE_S)

    async def kill(self) -> None:
        """Kill the process and wait until it is reaped."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.ended()
        self._listening.cancel()

    def exit_message(self) -> str:
        """Return the exit status or signal and the first error.  Call it after the end only."""
        code = self._process.returncode
        assert code is not None
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return ": ".join(filter(None, [how, self.first_error()]))

    def first_error(self) -> str:
        """Return the first error in the output, the cause of later ones; "" without one."""
        matches = (_ERROR.match(line) for line in self._lines)
        found = (match["logged"] or match["printed"] for match in matches if match)
        return next(found, "").strip()

    async def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        rest = b""
        while chunk := await output.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE_BYTES:]
            self._keep(lines)
        self._keep([rest])

    def _keep(self, lines: Sequence[bytes]) -> None:
        texts = (line[-_MAX_LINE_BYTES:].decode(errors="replace").strip() for line in lines)
        self._lines.extend(text for text in texts if text)


def run_child(arguments: Sequence[str]) -> int:
    parent, *command = arguments
    die_with_parent()
    if os.getppid() != int(parent):
        return 1  # the parent died before the setting took effect
    try:
        os.execv(command[0], command)  # noqa: S606 - without a shell
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[1:]))
