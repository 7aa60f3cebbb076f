"""Run the whole daemon as a separate process, with real engines or the fake one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).parents[1]
FAKE_ENGINE = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.engine")
_SCRIPT = """
import asyncio, contextlib, os, sys
from specd.daemon import run
from specd.daemon.logs import logging_to_stderr
from specd.settings import Settings
settings = Settings()
options = {"command": sys.argv[1:]} if len(sys.argv) > 1 else {}
logging = contextlib.nullcontext()
if "SPECD_LOG_FORMAT" in os.environ:  # its lines matter: as `specd serve` says them
    logging = logging_to_stderr(settings.debug, settings.log_format)
with logging:
    asyncio.run(run(settings, **options))
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    process: asyncio.subprocess.Process
    url: str
    http: aiohttp.ClientSession
    systemd: socket.socket

    async def told(self, line: str) -> str:
        """Return the next line sent to systemd that begins with `line`."""
        while True:
            said = await asyncio.get_running_loop().sock_recv(self.systemd, 1000)
            for one in said.decode().splitlines():
                if one.startswith(line):
                    return one

    def generate(self, prompt: str, *, model: str = "m", **fields: object) -> Any:
        return self.http.post("/api/generate", json={"model": model, "prompt": prompt, **fields})

    async def answer(self, prompt: str, **fields: Any) -> list[dict[str, Any]]:
        async with self.generate(prompt, **fields) as response:
            return [json.loads(line) async for line in response.content]

    def engines(self) -> list[psutil.Process]:
        return [child for child in self.children() if "specd.prompt" not in child.cmdline()]

    def children(self) -> list[psutil.Process]:
        """Return the daemon's child processes: engines and template workers."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path,
    *,
    engine: Sequence[str] = (),
    log: int | None = None,
    under: Sequence[str] = (),
    **variables: str,
) -> AsyncIterator[Daemon]:
    """Start a daemon; yield it once it has sent READY=1 to the socket that stands in for systemd.

    The store is tmp_path/models.
    engine: command that replaces the engine; empty runs the real one.
    log: file descriptor of the log; None is the stderr of the tests.
    under: wrapper command, which replaces itself by the command in its arguments.
    The daemon runs on one processor: the tests share few, and llama.cpp's threads wait for each
    other.
    """
    processors = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = {processors[worker % len(processors)]}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        (tmp_path / "notify").unlink(missing_ok=True)  # of an earlier daemon
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            *under,
            sys.executable,
            "-c",
            _SCRIPT,
            *engine,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "OLLAMA_HOST": "127.0.0.1:0",
                "OLLAMA_MODELS": str(tmp_path / "models"),
                "SPECD_STATE_DIR": str(tmp_path / "state"),
            }
            | variables,
        )
        try:
            hearing = asyncio.ensure_future(_ready(systemd))
            ending = asyncio.ensure_future(process.wait())
            await asyncio.wait({hearing, ending}, return_when=asyncio.FIRST_COMPLETED)
            assert hearing.done(), "the daemon ended before it was ready"
            url = hearing.result().removeprefix("STATUS=listening on ").partition(";")[0]
            async with aiohttp.ClientSession(url) as http:
                yield Daemon(process, url, http, systemd)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _ready(systemd: socket.socket) -> str:
    """Return the status line of READY=1; skip the earlier messages of a long start."""
    said = ""
    while not said.startswith("READY=1\n"):
        said = (await asyncio.get_running_loop().sock_recv(systemd, 1000)).decode()
    return said.splitlines()[1]


async def ended(processes: list[psutil.Process]) -> bool:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=30)
    return not alive
