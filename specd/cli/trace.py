"""`specd trace`: why speculation did what it did, from a file of SPECD_TRACE_DIR."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

#: The engine's controller replays it, in a process of its own: nobody imports the engine.
REPLAY = (sys.executable, "-m", "specd.engine.trace", "--")


def trace(file: Annotated[Path, typer.Argument(help="A file of SPECD_TRACE_DIR.")]) -> None:
    raise typer.Exit(subprocess.run([*REPLAY, str(file)], check=False).returncode)
