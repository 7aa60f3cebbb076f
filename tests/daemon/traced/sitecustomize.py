"""Record which files of `specd/` a process calls, if TRACE_FOLDER is set.

SIGUSR1 empties the record; SIGUSR2 writes it to the pipe
TRACE_FOLDER/<process id>, one path a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parents[3] / "specd") + "/"


def install(folder: Path) -> None:
    called: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE):
                called[name.removeprefix(PACKAGE)] = None

    def write(*_: object) -> None:
        (folder / str(os.getpid())).write_text("\n".join(list(called)))

    signal.signal(signal.SIGUSR1, lambda *_: called.clear())
    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(profile)
    sys.setprofile(profile)


if "TRACE_FOLDER" in os.environ:
    install(Path(os.environ["TRACE_FOLDER"]))
