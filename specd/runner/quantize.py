"""Has a GGUF quantized by an engine process, which costs nobody else anything when it dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from specd.errors import EngineError
from specd.runner.supervisor import ENGINE, MAX_LINE_BYTES, THREAD_DEFAULTS

_PROGRESS: Final = re.compile(rb"(\d+)/(\d+)")
_FIXED: Final = {"GGML_NO_BACKTRACE": "1"}


async def quantize(
    source: Path, target: Path, file_type: str, *, command: Sequence[str] = ENGINE
) -> AsyncGenerator[tuple[int, int], None]:
    """Write `source` to `target` in that type; yields (tensors done, all tensors).

    Closing it early ends the process.  Raises EngineError with its last words.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            *("quantize", str(source), str(target), file_type),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=THREAD_DEFAULTS | os.environ | _FIXED,
            process_group=0,  # a terminal's Ctrl-C is for the daemon alone
        )
    except OSError as error:
        raise EngineError(f"the engine cannot be started: {error}") from error
    last_line = b""
    try:
        async for line in _lines(process):
            if found := _PROGRESS.fullmatch(line):
                yield int(found[1]), int(found[2])
            else:
                last_line = line
        code = await process.wait()
    finally:
        await _end(process)
    if code != 0:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        words = last_line.decode(errors="replace").removeprefix("failed to quantize: ")
        raise EngineError(f"quantizing to {file_type} failed: {words or how}")


async def _lines(process: Process) -> AsyncIterator[bytes]:
    """What it writes, line by line, without empty ones; the end of an overlong line alone."""
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-MAX_LINE_BYTES:]
        for line in lines:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
