"""Quantize a GGUF in a separate engine process, so that a crash affects nothing else."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

from specd.errors import EngineError
from specd.runner.environment import environment
from specd.runner.output import ended, iter_lines
from specd.runner.supervisor import ENGINE, strip_source_folders

log = logging.getLogger(__name__)

_PROGRESS: Final = re.compile(rb"(\d+)/(\d+)")
#: Bytes written to test whether the disk accepts any.
_PROBE_BYTES: Final = 2**20


async def quantize(
    source: Path,
    target: Path,
    file_type: str,
    *,
    command: Sequence[str] = ENGINE,
    stall_s: float = math.inf,
) -> AsyncGenerator[tuple[int, int], None]:
    """Write `source` to `target` in that type; yield (tensors done, all tensors).

    stall_s: longest time without output; there is a line for each tensor.
    Closing it early ends the process.  Raises EngineError with the process's last line.
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
        raise EngineError(f"cannot start the engine: {error}") from error
    last_line = b""
    try:
        async for line in iter_lines(process, stall_s):
            if found := _PROGRESS.fullmatch(line):
                yield int(found[1]), int(found[2])
            else:
                last_line = line
        code = await process.wait()
    except TimeoutError as error:
        message = f"quantizing to {file_type} failed: no progress for {stall_s:.0f} s"
        log.warning("%s", message)
        raise EngineError(message) from error
    finally:
        await ended(process)
    if code != 0:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        message = strip_source_folders(last_line.decode(errors="replace"))
        message = message.removeprefix("failed to quantize: ")
        cause = await asyncio.to_thread(_disk_error, target) or message or how
        log.warning("quantizing to %s failed: %s", file_type, cause)
        raise EngineError(f"quantizing to {file_type} failed: {cause}")


def _disk_error(target: Path) -> str:
    """Return why `target` cannot be written, or "": llama.cpp does not report the reason."""
    try:
        with target.open("ab") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
