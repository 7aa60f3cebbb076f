"""Start the soak's daemon: the real command with its own store, in a scratch folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.soak.model_store import write_models

ROOT = Path(__file__).resolve().parents[2]
#: Each model has four slots.  Rounding is small without flash attention and with a cache of 32-bit
#: floats, so that an answer under load can be compared with the same answer alone.
SETTINGS = {
    "OLLAMA_NUM_PARALLEL": "4",
    "OLLAMA_FLASH_ATTENTION": "0",
    "OLLAMA_KV_CACHE_TYPE": "f32",
    "SPECD_LOG_FORMAT": "json",
}
_READY_S = 60.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class SoakDaemon:
    """A running daemon.  models: name → file of its weights, which identifies its engine."""

    folder: Path
    url: str
    pid: int
    process: asyncio.subprocess.Process
    models: dict[str, str]

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def scratch(self) -> Path:
        """Return the folder of the daemon's temporary files."""
        return self.folder / "tmp"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def model_of(self, engine: psutil.Process) -> str | None:
        """Return the engine's model, None if no model is loaded.  Raises psutil.Error."""
        maps = " ".join(each.path for each in engine.memory_maps())
        return next((name for name, part in self.models.items() if part in maps), None)

    async def stop(self) -> int:
        """Stop the daemon by SIGTERM and return its exit status.  Raises TimeoutError."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_STOP_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def start_daemon(folder: Path) -> AsyncIterator[SoakDaemon]:
    """Yield the daemon when it reports that it is ready, on a socket in place of systemd's.

    It may use every processor, as the service may.
    """
    models = write_models(folder)
    (folder / "tmp").mkdir()
    with _systemd(folder / "notify") as systemd, (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "specd",
            "serve",
            stderr=log,
            env=_environment(folder),
        )
        try:
            url = await _listening(systemd, process)
            yield SoakDaemon(folder, url, process.pid, process, models)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _environment(folder: Path) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OLLAMA_", "SPECD_"))
    }
    return {
        **inherited,
        **SETTINGS,
        "PYTHONPATH": str(ROOT),
        "NOTIFY_SOCKET": str(folder / "notify"),
        "OLLAMA_HOST": "127.0.0.1:0",
        "OLLAMA_MODELS": str(folder / "models"),
        "SPECD_STATE_DIR": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "TMPDIR": str(folder / "tmp"),
    }


@contextlib.contextmanager
def _systemd(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        yield sock


async def _listening(systemd: socket.socket, process: asyncio.subprocess.Process) -> str:
    """Return the daemon's URL.  Raises RuntimeError if it ends first, and TimeoutError."""
    ending = asyncio.ensure_future(process.wait())
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_READY_S):
        while True:
            receiving = asyncio.ensure_future(loop.sock_recv(systemd, 4096))
            await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                raise RuntimeError("the daemon ended before it was ready")
            for line in receiving.result().decode().splitlines():
                if line.startswith("STATUS=listening on "):
                    ending.cancel()
                    return line.removeprefix("STATUS=listening on ").split()[0]
