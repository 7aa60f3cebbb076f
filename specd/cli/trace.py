"""Implement `specd trace`: explain the decisions in a file of SPECD_TRACE_DIR."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

#: The engine's controller replays it in its own process, because no package imports the engine.
REPLAY = (sys.executable, "-m", "specd.engine.trace", "--")


def trace(file: Annotated[Path, typer.Argument(help="A file from SPECD_TRACE_DIR.")]) -> None:
    raise typer.Exit(subprocess.run([*REPLAY, str(file)], check=False).returncode)
