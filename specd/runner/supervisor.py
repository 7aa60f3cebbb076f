"""Start an engine process, keep its last output, and end it."""

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
#: The folders before a source file and its line, as GGML_ASSERT writes them.
_SOURCE_FOLDERS = re.compile(r"\S*/(?=[\w.+-]+\.(?:c|cc|cpp|cu|cuh|h|hpp|m|mm|inc):\d+)")
OUTPUT_TIMEOUT_S = 1.0
#: Longest wait after SIGKILL; a process that still exists is blocked in a driver or a disk.
KILL_TIMEOUT_S = 10.0
#: The start of a line that the engine logs as a warning.
_WARNING = "WARNING "
#: The start of lines of the engine's log that do not tell why it ended.
_NOT_THE_CAUSE = ("DEBUG ", "INFO ", _WARNING)


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
        """Start the command and return it; raise OSError if that fails.

        devices: see `environment`.
        """
        with contextlib.ExitStack() as unless_started:
            ours, theirs = socket.socketpair()
            unless_started.callback(ours.close)
            with theirs:
                # A pipe made by asyncio would stay open as long as a grandchild holds it.
                output, pipe, write_end = await _pipe()
                unless_started.callback(pipe.close)
                with write_end:
                    process = await asyncio.create_subprocess_exec(
                        *command,
                        "--fd",
                        str(theirs.fileno()),
                        pass_fds=(theirs.fileno(),),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=write_end,  # native code writes to both when it dies
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
        """Run the reader of the channel; `end` and `kill` let it read the last message."""
        task = asyncio.create_task(reader)
        self._readers.add(task)
        return task

    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    async def wait_for_exit(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the process; return whether it has ended.  Output may stay open."""
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
        """Whether SIGKILL ended it, from any sender; valid only after `kill` or `end`."""
        return self._process.returncode == -signal.SIGKILL

    def exit_message(self) -> str:
        """Return how it ended and its last line; valid only after `kill` or `end`."""
        code = self._process.returncode
        if code is None:
            return "it cannot be ended"
        how = f"exit status {code}" if code >= 0 else f"signal: {signal.Signals(-code).name}"
        lines = [line for line in self._last_lines if not line.startswith(_NOT_THE_CAUSE)]
        return ": ".join([how, *map(strip_source_folders, lines[-1:])])

    async def end(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for the exit, again after SIGTERM, then `kill`."""
        try:
            for kill_if_alive in (signal.SIGTERM, signal.SIGKILL):
                if await self.wait_for_exit(grace_s):
                    return
                log.warning("engine %d does not end, sending %s", self.pid, kill_if_alive.name)
                self._signal(kill_if_alive)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL if it runs; return when it is reaped and its output is read.

        It is given up after KILL_TIMEOUT_S: then it is still alive.
        """
        self._signal(signal.SIGKILL)
        if not await self.wait_for_exit(KILL_TIMEOUT_S):
            log.error("engine %d cannot be ended, not even by SIGKILL", self.pid)
        # A grandchild may hold pipe and socket open for ever, so the wait is limited.
        await asyncio.wait(self._readers, timeout=OUTPUT_TIMEOUT_S)
        for reader in self._readers:
            reader.cancel()
        self._pipe.close()
        await self.channel.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal.  asyncio's own `kill` may reap a dead child and lose its exit status."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def strip_source_folders(line: str) -> str:
    """Return llama.cpp's line without the folders of the machine that compiled it."""
    return _SOURCE_FOLDERS.sub("", line)


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP has stopped the process; False if that cannot be read."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.BaseTransport, BinaryIO]:
    """Return the reader of a pipe, the transport that closes it, and the end to write to."""
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
    )
    return reader, transport, os.fdopen(theirs, "wb", buffering=0)
