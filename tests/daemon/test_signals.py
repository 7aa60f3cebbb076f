"""SIGHUP stops a daemon whose terminal was closed, and otherwise reloads its settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The terminal is there at the start, and gone when the hangup comes, as argv says.
PROGRAM = """
import asyncio, os, signal, sys
from specd.daemon import signals

at_start, later, under_nohup = (word == "yes" for word in sys.argv[1:])
signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
answers = iter([at_start, later])
signals._has_terminal = lambda: next(answers)

async def main():
    heard = signals.Signals.install()
    os.kill(os.getpid(), signal.SIGHUP)
    events = {"stop": heard.stop, "reload": heard.reload}
    tasks = {asyncio.create_task(event.wait(), name=name) for name, event in events.items()}
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    print(*(task.get_name() for task in done))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "at_start,later,under_nohup,heard",
    [
        ("yes", "no", "no", "stop"),
        ("yes", "no", "yes", "reload"),
        ("yes", "yes", "no", "reload"),
        ("no", "no", "no", "reload"),
    ],
)
def test_sighup_stops_or_reloads(at_start: str, later: str, under_nohup: str, heard: str) -> None:
    command = [sys.executable, "-c", PROGRAM, at_start, later, under_nohup]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [heard]
