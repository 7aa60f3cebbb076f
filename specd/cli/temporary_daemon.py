"""Run a separate daemon for the length of a command: free port, demo pair, empty history."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from specd.cli.client import Client
from specd.cli.sync_client import DaemonUnreachable
from specd.errors import SpecdError

SERVE = (sys.executable, "-m", "specd", "serve")
_POLL_S = 0.05
_START_S = 60.0
_STOP_S = 20.0


class TemporaryDaemonFailed(SpecdError):
    pass


@asynccontextmanager
async def temporary_daemon(command: Sequence[str] = SERVE) -> AsyncGenerator[str, None]:
    """Yield the URL of a daemon that answers, and stop it at the end.

    Raises TemporaryDaemonFailed.
    """
    with tempfile.TemporaryDirectory(prefix="specd-") as folder:
        log, models = Path(folder) / "log", Path(folder) / "models"
        models.mkdir()
        port = _free_port()
        environment = {
            **os.environ,
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": str(models),
            "OLLAMA_SPECULATIVE_DECODE": "1",
            "SPECD_API_KEYS": "",
            "SPECD_DEMO": "1",
            "SPECD_STATE_DIR": folder,
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            await _answers(url, process, log)
            yield url
        finally:
            await _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    try:
        async with asyncio.timeout(_START_S), Client(url) as client:
            while process.returncode is None:
                with suppress(DaemonUnreachable):
                    await client.get("/api/version")
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TemporaryDaemonFailed(
            f"the daemon did not answer within {_START_S:.0f} s{_tail(log)}"
        ) from None
    raise TemporaryDaemonFailed(f"the daemon ended with status {process.returncode}{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:]
    return ":\n" + "\n".join(lines) if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
    await process.wait()
