"""Engine output in the daemon's log."""

from __future__ import annotations

import logging
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
