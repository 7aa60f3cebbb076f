"""A peer as an operating system sees it: started, heard, ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from specd.runner.environment import THREAD_DEFAULTS

_N_LAST_LINES = 200
_MAX_LINE_BYTES = 4096
_EXIT_MESSAGE_S = 1.0
#: llama.cpp's own log (time, level, who, what), and what it prints where it has none yet.
_ERROR = re.compile(r"(?:[\d.]+ E )(?P<logged>.*)|(?P<printed>error\b.*)")
_FIXED = {"GGML_NO_BACKTRACE": "1"}


class PeerProcess:
    """A running server.  Its output is kept for the sentence that says how it ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_N_LAST_LINES)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> PeerProcess:
        """command: an absolute path and arguments.  OSError where no process can be started."""
        # Its settings come from us alone.
        ours = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
        child = [sys.executable, "-m", "specd.bench.peer_child", str(os.getpid())]
        process = await asyncio.create_subprocess_exec(
            *child,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**THREAD_DEFAULTS, **ours, **environment, **_FIXED},
            # Its own group: a terminal's Ctrl-C is for the bench, which ends it.
            process_group=0,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        await self._process.wait()
        # A grandchild may hold the pipe open for ever: its words are not waited for.
        await asyncio.wait({self._listening}, timeout=_EXIT_MESSAGE_S)

    async def kill(self) -> None:
        """Returns when it is reaped.  There is nothing in it that would need a farewell."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.ended()
        self._listening.cancel()

    def exit_message(self) -> str:
        """How it ended, and why as far as it said; after its end only."""
        code = self._process.returncode
        assert code is not None
        how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return ": ".join(filter(None, [how, self.first_error()]))

    def first_error(self) -> str:
        """The first thing that it called an error: what follows are its consequences."""
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
