"""Ask llama.cpp, in a separate process, which GPUs it can use."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Iterable, Sequence

import msgspec

from specd import core
from specd.runner.environment import environment
from specd.runner.supervisor import ENGINE

log = logging.getLogger(__name__)

#: CUDA takes a second for each GPU whose driver sleeps; a driver that hangs never answers.
TIMEOUT_S = 15.0
#: After this time a warning says what the daemon waits for.
SLOW_S = 5.0
#: Longest wait for the end of a killed process, which a driver may block.
_KILL_TIMEOUT_S = 1.0

DeviceList = tuple[core.BackendDevice, ...]


def probe(command: Sequence[str] = ENGINE, *, timeout_s: float = TIMEOUT_S) -> DeviceList | None:
    """Return the GPUs; None, with a warning in the log, if they cannot be listed.  Blocks.

    If a GPU has too little free memory to be opened, the entries have only names.
    """
    try:
        process = subprocess.Popen(
            [*command, "devices"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            process_group=0,  # a terminal's Ctrl-C is for the daemon alone
        )
    except OSError as error:
        log.warning("cannot start llama.cpp to list its GPUs: %s", error)
        return None
    output, last_line, failure = _read_output(process, timeout_s)
    found = _last_list(output.splitlines())
    if found == () and last_line and not failure:  # mostly a driver that is too old
        log.warning("llama.cpp finds no GPU: %s", last_line)
    if found is None:
        log.warning("llama.cpp did not list its GPUs: %s", failure or "no list")
    elif failure:
        log.warning("llama.cpp could not open its GPUs, only their names are known: %s", failure)
    return found


def _read_output(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, str, str]:
    """Return the probe's stdout, the last line of its stderr, and what failed, or ""."""
    try:
        output, stderr = _read_warnings(process, timeout_s)
    except subprocess.TimeoutExpired as error:
        _end(process)
        return error.output or b"", "", f"it took more than {timeout_s:g} s"
    last_line = stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode == 0:
        return output, last_line, ""
    failure = ": ".join(filter(None, (f"exit status {process.returncode}", last_line)))
    return output, last_line, failure


def _read_warnings(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    slow_s = min(SLOW_S, timeout_s)
    try:
        return process.communicate(timeout=slow_s)
    except subprocess.TimeoutExpired:
        message = "llama.cpp has not listed its GPUs yet, a driver may hang; waiting %g s more"
        log.warning(message, timeout_s - slow_s)
    return process.communicate(timeout=timeout_s - slow_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_S)


def _last_list(lines: Iterable[bytes]) -> DeviceList | None:
    """Return the last line that is a list of devices: libraries may also write to stdout."""
    found: DeviceList | None = None
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(line, type=DeviceList)
    return found
