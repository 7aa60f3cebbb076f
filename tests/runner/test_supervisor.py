"""Engine output in the daemon's log."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from specd.runner.supervisor import ChildProcess

_SAYS = "print('WARNING specd.engine: mind the gap'); print('load: 1.0')"


async def test_an_engines_warning_is_logged_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "specd.runner.supervisor")
    child = await ChildProcess.start((sys.executable, "-c", _SAYS))
    await child.end(grace_s=30.0)
    said = {r.getMessage().partition(": ")[2]: r.levelno for r in caplog.records}
    assert said == {
        "WARNING specd.engine: mind the gap": logging.WARNING,
        "load: 1.0": logging.DEBUG,
    }


@pytest.mark.parametrize(
    "output, message",
    [
        (["INFO specd.engine: loaded", "WARNING specd.engine: slow"], "signal: SIGKILL"),
        (
            ["ggml: no kernel image", "INFO specd.engine: loaded"],
            "signal: SIGKILL: ggml: no kernel image",
        ),
        (["ERROR specd.engine: cannot read"], "signal: SIGKILL: ERROR specd.engine: cannot read"),
    ],
)
async def test_exit_message_leaves_out_log_lines_below_errors(
    output: list[str], message: str
) -> None:
    program = f"import os\nprint({os.linesep.join(output)!r}, flush=True)\nos.kill(os.getpid(), 9)"
    child = await ChildProcess.start((sys.executable, "-c", program))
    await child.wait_for_exit()
    await child.end(grace_s=30.0)
    assert child.exit_message() == message
