"""Asks llama.cpp, in a process of its own, which GPUs it can use."""

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

#: CUDA takes a second for each GPU whose driver sleeps; a driver that hangs takes for ever.
TIMEOUT_S = 15.0
#: By then somebody should know what the daemon waits for.
SLOW_S = 5.0
#: A process that is killed and held by a driver is not waited for any longer.
_KILL_TIMEOUT_S = 1.0

DeviceList = tuple[core.BackendDevice, ...]


def probe(command: Sequence[str] = ENGINE, *, timeout_s: float = TIMEOUT_S) -> DeviceList | None:
    """None where it cannot be found out, with a warning that says why.  Blocks.

    Where a GPU was too full to be opened, all are known by their names alone.
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
        log.warning("llama.cpp cannot be asked for its GPUs: %s", error)
        return None
    output, words, failure = _read_output(process, timeout_s)
    found = _last_list(output.splitlines())
    if found == () and words and not failure:  # a backend that found its driver too old, as a rule
        log.warning("llama.cpp finds no GPU: %s", words)
    if found is None:
        log.warning("llama.cpp does not say which GPUs it can use: %s", failure or "no list")
    elif failure:
        log.warning("llama.cpp could not open its GPUs, only their names are known: %s", failure)
    return found


def _read_output(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, str, str]:
    """What it wrote to stdout, the last line on stderr, and what went wrong."""
    try:
        output, said = _read_warnings(process, timeout_s)
    except subprocess.TimeoutExpired as error:
        _end(process)
        return error.output or b"", "", f"it took more than {timeout_s:g} s"
    words = said.decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode == 0:
        return output, words, ""
    return output, words, ": ".join(filter(None, (f"exit status {process.returncode}", words)))


def _read_warnings(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    slow_s = min(SLOW_S, timeout_s)
    try:
        return process.communicate(timeout=slow_s)
    except subprocess.TimeoutExpired:
        words = "llama.cpp was asked for its GPUs and is silent: a driver may hang; %g s more"
        log.warning(words, timeout_s - slow_s)
    return process.communicate(timeout=timeout_s - slow_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_S)


def _last_list(lines: Iterable[bytes]) -> DeviceList | None:
    """The last line that is a list of devices: libraries may write to stdout as well."""
    found: DeviceList | None = None
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(line, type=DeviceList)
    return found
