"""The operating system's side of an engine: start it, keep its last words, make it end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import BinaryIO

import psutil

from specd.ipc.channel import DaemonChannel
from specd.runner.environment import environment

log = logging.getLogger(__name__)

ENGINE = (sys.executable, "-m", "specd.engine")
N_LAST_LINES = 20
MAX_LINE_BYTES = 4096
#: Of a source file and its line, as GGML_ASSERT writes them.
_SOURCE_FOLDERS = re.compile(r"\S*/(?=[\w.+-]+\.(?:c|cc|cpp|cu|cuh|h|hpp|m|mm|inc):\d+)")
OUTPUT_TIMEOUT_S = 1.0
#: After SIGKILL.  A process that is not gone by then is held by the kernel: a driver, a disk.
KILL_TIMEOUT_S = 10.0
#: How a line of the engine's own log begins that its user should see.
_WARNING = "WARNING "


class ChildProcess:
    """A running engine process and the daemon's end of its socket."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        channel: DaemonChannel,
        output: asyncio.StreamReader,
        pipe: asyncio.BaseTransport,
    ) -> None:
        self.channel = channel
        self._process = process
        self._pipe = pipe
        self._last_lines: deque[str] = deque(maxlen=N_LAST_LINES)
        self._exit = asyncio.create_task(process.wait())
        self._readers: set[asyncio.Task[object]] = {asyncio.create_task(self._keep_output(output))}

    @classmethod
    async def start(
        cls, command: Sequence[str], devices: Sequence[str] | None = None
    ) -> ChildProcess:
        """devices: see `environment`.  OSError where the command cannot be started."""
        with contextlib.ExitStack() as unless_started:
            ours, theirs = socket.socketpair()
            unless_started.callback(ours.close)
            with theirs:
                # Not a pipe of asyncio's: that is open for as long as a grandchild holds it.
                output, pipe, said = await _pipe()
                unless_started.callback(pipe.close)
                with said:
                    process = await asyncio.create_subprocess_exec(
                        *command,
                        "--fd",
                        str(theirs.fileno()),
                        pass_fds=(theirs.fileno(),),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=said,  # native code writes to both when it dies
                        stderr=asyncio.subprocess.STDOUT,
                        env=environment(devices),
                        # Its own group: a terminal's Ctrl-C is for the daemon alone.
                        process_group=0,
                    )
            channel = await DaemonChannel.from_socket(ours)
            unless_started.pop_all()
        return cls(process, channel, output, pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def listen(self, reader: Coroutine[object, object, str]) -> asyncio.Task[str]:
        """Run what reads the channel; `end` and `kill` let it hear the last word."""
        task = asyncio.create_task(reader)
        self._readers.add(task)
        return task

    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    async def wait_for_exit(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended by itself in that time, however long its output is held open."""
        await asyncio.wait({self._exit}, timeout=timeout_s)
        return not self.is_alive

    async def _keep_output(self, output: asyncio.StreamReader) -> None:
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

    def exit_message(self) -> str:
        """How it ended, and the last line it wrote: after `kill` or `end` only."""
        code = self._process.returncode
        if code is None:
            return "it cannot be ended"
        how = f"exit status {code}" if code >= 0 else f"signal: {signal.Signals(-code).name}"
        # What it only warned of is not what it died of.
        lines = [line for line in self._last_lines if not line.startswith(_WARNING)]
        return ": ".join([how, *map(strip_source_folders, lines[-1:])])

    async def end(self, grace_s: float) -> None:
        """Wait `grace_s` for an exit that was asked for, as long after SIGTERM, then `kill`."""
        try:
            for kill_if_alive in (signal.SIGTERM, signal.SIGKILL):
                if await self.wait_for_exit(grace_s):
                    return
                log.warning("engine %d does not end: %s", self.pid, kill_if_alive.name)
                self._signal(kill_if_alive)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL unless it has gone; returns when it is reaped and its output read.

        Or when it is given up, after `DEATH_S`: then it is still alive.
        """
        self._signal(signal.SIGKILL)
        if not await self.wait_for_exit(KILL_TIMEOUT_S):
            log.error("engine %d cannot be ended, not even by SIGKILL", self.pid)
        # A grandchild may hold pipe and socket open for ever: its words are not waited for.
        await asyncio.wait(self._readers, timeout=OUTPUT_TIMEOUT_S)
        for reader in self._readers:
            reader.cancel()
        self._pipe.close()
        await self.channel.close()

    def _signal(self, number: signal.Signals) -> None:
        """Not by asyncio's own `kill`: that reaps a child just dead, and its status is lost."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def strip_source_folders(line: str) -> str:
    """Return llama.cpp's line without the folders of the machine that compiled it."""
    return _SOURCE_FOLDERS.sub("", line)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it (SIGSTOP), as far as can be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.BaseTransport, BinaryIO]:
    """What is read, what closes that end, and the end to write to."""
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
    )
    return reader, transport, os.fdopen(theirs, "wb", buffering=0)
