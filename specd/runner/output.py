"""Read the output of a helper process line by line, and end the process."""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable

from specd.runner.stall_detector import StallDetector
from specd.runner.supervisor import MAX_LINE_BYTES, is_stopped

log = logging.getLogger(__name__)


async def iter_lines(process: Process, stall_s: float) -> AsyncIterator[bytes]:
    """Yield the process's non-empty lines; of an overlong line only the end.

    Raises TimeoutError if nothing is written for `stall_s` seconds.
    """
    assert process.stdout is not None
    rest = b""
    while chunk := await _read_with_stall_check(process, process.stdout.read(65_536), stall_s):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-MAX_LINE_BYTES:]
        for line in lines:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


async def _read_with_stall_check(
    process: Process, reading: Awaitable[bytes], stall_s: float
) -> bytes:
    stall_detector = StallDetector(stall_s, lambda: is_stopped(process.pid))
    read = asyncio.ensure_future(reading)
    try:
        while not read.done():
            await asyncio.wait({read}, timeout=stall_detector.check_interval_s)
            if cause := stall_detector.check(has_progressed=read.done()):
                log.warning("ending process %d: %s", process.pid, cause)
                raise TimeoutError(cause)
        return read.result()
    finally:
        read.cancel()


async def ended(process: Process) -> None:
    """Kill the process if it is running; return when it has ended."""
    if process.returncode is None:
        process.kill()
    await process.wait()
