"""The operating system's side of an engine: start it, keep its last words, make it end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Sequence

from specd.ipc.channel import DaemonChannel
from specd.runner.environment import environment

log = logging.getLogger(__name__)

ENGINE = (sys.executable, "-m", "specd.engine")
N_LAST_LINES = 20
MAX_LINE_BYTES = 4096
LAST_WORDS_S = 1.0
#: How a line of the engine's own log begins that its user should see.
_WARNING = "WARNING "


class Child:
    """A running engine process and the daemon's end of its socket."""

    def __init__(self, process: asyncio.subprocess.Process, channel: DaemonChannel) -> None:
        self.channel = channel
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=N_LAST_LINES)
        self._readers = {asyncio.create_task(self._keep_output())}

    @classmethod
    async def start(cls, command: Sequence[str], devices: Sequence[str] | None = None) -> Child:
        """devices: see `environment`.  OSError where the command cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,  # native code writes to both when it dies
                    stderr=asyncio.subprocess.STDOUT,
                    env=environment(devices),
                    # Its own group: a terminal's Ctrl-C is for the daemon alone.
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, await DaemonChannel.over(ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def listen(self, reader: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run what reads the channel; `end` and `kill` let it hear the last word."""
        task = asyncio.create_task(reader)
        self._readers.add(task)
        return task

    async def _keep_output(self) -> None:
        output = self._process.stdout
        assert output is not None
        rest = b""
        while chunk := await output.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-MAX_LINE_BYTES:]
            for line in lines:
                self._keep(line)
        self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line[-MAX_LINE_BYTES:].decode(errors="replace").strip()
        if text:
            self._last_lines.append(text)
            level = logging.WARNING if text.startswith(_WARNING) else logging.DEBUG
            log.log(level, "engine %d: %s", self.pid, text)

    @property
    def was_killed(self) -> bool:
        """By SIGKILL, whoever sent it: after `kill` or `end` only."""
        return self._process.returncode == -signal.SIGKILL

    def last_words(self) -> str:
        """How it ended, and the last line it wrote: after `kill` or `end` only."""
        code = self._process.returncode
        assert code is not None
        how = f"exit status {code}" if code >= 0 else f"signal: {signal.Signals(-code).name}"
        # What it only warned of is not what it died of.
        lines = [line for line in self._last_lines if not line.startswith(_WARNING)]
        return ": ".join([how, *lines[-1:]])

    async def end(self, grace_s: float) -> None:
        """Wait `grace_s` for an exit that was asked for, as long after SIGTERM, then SIGKILL."""
        try:
            for insist in (signal.SIGTERM, signal.SIGKILL):
                try:
                    async with asyncio.timeout(grace_s):
                        await self._process.wait()
                    return
                except TimeoutError:
                    log.warning("engine %d does not end: %s", self.pid, insist.name)
                    self._signal(insist)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL unless it has gone; returns when it is reaped and its output read."""
        self._signal(signal.SIGKILL)
        await self._process.wait()
        # A grandchild may hold pipe and socket open for ever: its words are not waited for.
        await asyncio.wait(self._readers, timeout=LAST_WORDS_S)
        for reader in self._readers:
            reader.cancel()
        await self.channel.close()

    def _signal(self, number: signal.Signals) -> None:
        """Not by asyncio's own `kill`: that reaps a child just dead, and its status is lost."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
