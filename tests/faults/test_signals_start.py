"""A second daemon: on the same port it names the owner and exits; on another port both work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from specd import core
from specd.pairs import HISTORY_FILE, History
from tests.daemon_process import FAKE_ENGINE, ROOT, Daemon, ended, running
from tests.gguf_files import OllamaStore, write_llama

#: `specd serve`; sys.argv[1] is what the process calls itself.
_SERVE = """
import pathlib, sys
pathlib.Path("/proc/self/comm").write_text(sys.argv[1])
from specd.daemon import main
from specd.settings import Settings
sys.exit(main(Settings()))
"""

_OLLAMA = """
import pathlib, socket
pathlib.Path("/proc/self/comm").write_text("ollama")
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


async def second(url: str, tmp_path: Path) -> tuple[int, str]:
    """Start another daemon at the URL; return its exit status and its messages."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SERVE,
        "specd",
        stderr=asyncio.subprocess.PIPE,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "OLLAMA_HOST": url, "OLLAMA_MODELS": str(tmp_path / "models")},
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def with_models(tmp_path: Path, *names: str) -> Path:
    store = OllamaStore(tmp_path / "models")
    for name in names:
        store.add(name, weights=write_llama(tmp_path / f"{name}.gguf", chat_template=None))
    return tmp_path


async def test_a_second_daemon_names_the_process_that_has_the_port(tmp_path: Path) -> None:
    with_models(tmp_path, "m")
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        async with daemon.generate("hang") as response:
            await response.content.readline()
            status, said = await second(daemon.url, tmp_path)
            assert status == 1
            assert f"cannot listen on {daemon.url} (OLLAMA_HOST)" in said
            assert f"(pid {daemon.process.pid}" in said
            assert "or set OLLAMA_HOST to another port" in said
            assert "Traceback" not in said
            assert not response.content.at_eof()
        assert (await daemon.answer("a"))[-1]["done"]


@pytest.mark.system
async def test_an_error_about_a_used_port_names_ollama(tmp_path: Path) -> None:
    """A stub with Ollama's process name has the port."""
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _OLLAMA,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    port = int(await holder.stdout.readline())
    try:
        status, said = await second(f"127.0.0.1:{port}", tmp_path)
        assert status == 1
        assert f"Ollama itself, ollama (pid {holder.pid}" in said
    finally:
        holder.kill()
        await holder.wait()


@pytest.mark.system
async def test_the_port_can_be_used_again_at_once(tmp_path: Path) -> None:
    with_models(tmp_path, "m")
    host = "127.0.0.1:0"
    for _ in range(3):
        async with running(tmp_path, engine=FAKE_ENGINE, OLLAMA_HOST=host) as daemon:
            host = daemon.url.removeprefix("http://")
            # Server connections in TIME_WAIT do not hold the port.
            async with daemon.http.get("/api/version", headers={"Connection": "close"}):
                await daemon.answer("a")
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.process.wait() == 0


def learned(tmp_path: Path) -> dict[str, core.BandHistory]:
    """Return the learned statistics by the target's weights."""
    entries = History(tmp_path / "state" / HISTORY_FILE).entries()
    return {entry.key.target: band for entry in entries for band in entry.history.bands}


@pytest.mark.system
async def test_two_daemons_share_a_store_and_a_state_folder(tmp_path: Path) -> None:
    with_models(tmp_path, "m", "n")

    async def use(daemon: Daemon, model: str) -> None:
        for _ in range(5):
            assert (await daemon.answer("a", model=model, keep_alive=0))[-1]["done"]
            await ended(daemon.engines())

    (tmp_path / "second").mkdir()
    other = {"SPECD_STATE_DIR": str(tmp_path / "state"), "OLLAMA_MODELS": str(tmp_path / "models")}
    async with (
        running(tmp_path, engine=FAKE_ENGINE) as one,
        running(tmp_path / "second", engine=FAKE_ENGINE, log=None, **other) as two,
    ):
        await asyncio.gather(use(one, "m"), use(two, "n"))
        for daemon in (one, two):
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.process.wait() == 0
    assert sorted(band.n_requests for band in learned(tmp_path).values()) == [5, 5]
    assert not list((tmp_path / "state").glob("*.damaged"))
