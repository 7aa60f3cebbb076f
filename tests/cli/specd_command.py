"""Run the program in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.daemon_process import ROOT, Daemon


async def specd(
    daemon: Daemon, *arguments: str, folder: Path, stdin: bytes = b"", status: int = 0
) -> bytes:
    """Return the standard output; with an error status, the standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", *arguments),
        cwd=folder,
        env=os.environ | {"OLLAMA_HOST": daemon.url, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin)
    assert process.returncode == status, err
    return err if status else out
