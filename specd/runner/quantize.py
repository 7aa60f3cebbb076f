"""Has a GGUF quantized by an engine process, which costs nobody else anything when it dies."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Final

from specd.errors import EngineError
from specd.runner.environment import environment
from specd.runner.patience import Patience
from specd.runner.supervisor import ENGINE, MAX_LINE_BYTES, is_stopped

log = logging.getLogger(__name__)

_PROGRESS: Final = re.compile(rb"(\d+)/(\d+)")
#: Written to see whether anything can be.
_PROBE_BYTES: Final = 2**20


async def quantize(
    source: Path,
    target: Path,
    file_type: str,
    *,
    command: Sequence[str] = ENGINE,
    stall_s: float = math.inf,
) -> AsyncGenerator[tuple[int, int], None]:
    """Write `source` to `target` in that type; yields (tensors done, all tensors).

    stall_s: how long it may say nothing; it says something at each tensor.
    Closing it early ends the process.  Raises EngineError with its last words.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            *("quantize", str(source), str(target), file_type),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=environment(),
            process_group=0,  # a terminal's Ctrl-C is for the daemon alone
        )
    except OSError as error:
        raise EngineError(f"the engine cannot be started: {error}") from error
    last_line = b""
    try:
        async for line in _lines(process, stall_s):
            if found := _PROGRESS.fullmatch(line):
                yield int(found[1]), int(found[2])
            else:
                last_line = line
        code = await process.wait()
    except TimeoutError as error:
        said = f"quantizing to {file_type} failed: no progress for {stall_s:.0f} s"
        log.warning("%s", said)
        raise EngineError(said) from error
    finally:
        await _end(process)
    if code != 0:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        words = last_line.decode(errors="replace").removeprefix("failed to quantize: ")
        why = await asyncio.to_thread(_refusal_of_disk, target) or words or how
        log.warning("quantizing to %s failed: %s", file_type, why)
        raise EngineError(f"quantizing to {file_type} failed: {why}")


def _refusal_of_disk(target: Path) -> str:
    """Why no more can be written there, else "": llama.cpp only says that it could not write."""
    try:
        with target.open("ab") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


async def _lines(process: Process, stall_s: float) -> AsyncIterator[bytes]:
    """What it writes, line by line, without empty ones; the end of an overlong line alone.

    Raises TimeoutError where nothing comes for so long.
    """
    assert process.stdout is not None
    rest = b""
    while chunk := await _patiently(process, process.stdout.read(65_536), stall_s):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-MAX_LINE_BYTES:]
        for line in lines:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


async def _patiently(process: Process, reading: Awaitable[bytes], stall_s: float) -> bytes:
    patience = Patience(stall_s, lambda: is_stopped(process.pid))
    read = asyncio.ensure_future(reading)
    try:
        while not read.done():
            await asyncio.wait({read}, timeout=patience.look_s)
            if why := patience.look(moved=read.done()):
                log.warning("the quantizer %d is ended: %s", process.pid, why)
                raise TimeoutError(why)
        return read.result()
    finally:
        read.cancel()


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
