"""The output of a process that works for specd, line by line, and its end."""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable

from specd.runner.patience import Patience
from specd.runner.supervisor import MAX_LINE_BYTES, is_stopped

log = logging.getLogger(__name__)


async def lines_of(process: Process, stall_s: float) -> AsyncIterator[bytes]:
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
                log.warning("the process %d is ended: %s", process.pid, why)
                raise TimeoutError(why)
        return read.result()
    finally:
        read.cancel()


async def ended(process: Process) -> None:
    """Kill the process if it runs; return when it is gone."""
    if process.returncode is None:
        process.kill()
    await process.wait()
