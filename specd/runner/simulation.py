"""Ask llama.cpp, in a separate process, how much memory models would take."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Sequence
from typing import Final

import msgspec

from specd import core
from specd.runner.environment import environment
from specd.runner.supervisor import ENGINE

log = logging.getLogger(__name__)

#: Two models take half a second on an idle machine.
TIMEOUT_S: Final = 10.0


def simulate(
    loads: Sequence[core.SimulatedLoad],
    *,
    command: Sequence[str] = ENGINE,
    timeout_s: float = TIMEOUT_S,
) -> list[list[core.ContextMemory] | None]:
    """Return the contexts of each load; None if llama.cpp gave no answer for it.  Blocks."""
    output, failure = b"", ""
    try:
        process = subprocess.run(
            [*command, "simulate"],
            input=msgspec.json.encode(loads),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(()),  # GPUs would take a second to open
            process_group=0,  # a terminal's Ctrl-C is for the daemon alone
            timeout=timeout_s,
            check=False,
        )
        output = process.stdout
        failure = f"exit status {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, failure = error.stdout or b"", f"it took more than {timeout_s:g} s"
    except OSError as error:
        failure = str(error)
    if failure:
        log.warning("cannot measure a model before its load, so it is estimated: %s", failure)
    answers: list[list[core.ContextMemory] | None] = []
    for line in output.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            answers.append(msgspec.json.decode(line, type=list[core.ContextMemory] | None))
    return [*answers, *[None] * len(loads)][: len(loads)]
