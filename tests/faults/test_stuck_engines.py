"""A driver or a disk that hangs: what happens to an engine, and to the daemon's start."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from specd.runner import State
from tests.daemon_process import _SCRIPT, FAKE_ENGINE, ROOT
from tests.runner.processes import answer_of, failure_of, running

_TRACE = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
sys.exit(1) if ptrace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0) else print("seized", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="asyncio's pidfd watcher blocks the event loop on a child that is traced when it dies",
)
@pytest.mark.system
async def test_an_engine_that_sigkill_does_not_end_is_abandoned_and_reported() -> None:
    """A tracer holds the process, as a hanging driver would."""
    async with running(grace_s=0.1) as process:
        await process.ready()
        tracer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _TRACE, str(process.pid)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert tracer.stdout is not None
        assert tracer.stdin is not None
        if await tracer.stdout.readline() != b"seized\n":
            await tracer.wait()
            pytest.skip("no process may be traced here")
        failed = failure_of(await answer_of(process, "!garbage"))
        assert "it cannot be ended" in failed.message
        assert await process.ended() is State.CRASHED
        assert process.is_stuck
        tracer.stdin.close()
        await tracer.wait()
        assert process._child is not None  # noqa: SLF001 - nothing else waits for the kernel
        await process._child.wait_for_exit()  # noqa: SLF001 - nothing else waits for the kernel
        assert not process.is_stuck


@pytest.mark.system
async def test_a_start_that_waits_for_a_driver_logs_it_and_continues(tmp_path: Path) -> None:
    variables = {
        "PYTHONPATH": str(ROOT),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "OLLAMA_HOST": "127.0.0.1:0",
        "OLLAMA_MODELS": str(tmp_path / "models"),
        "SPECD_STATE_DIR": str(tmp_path / "state"),
        "FAKE_DEVICES": "hang",
    }
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(variables["NOTIFY_SOCKET"])
        systemd.setblocking(False)
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SCRIPT, *FAKE_ENGINE),
            env=os.environ | variables,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            first = (await loop.sock_recv(systemd, 1000)).decode()
            assert first.startswith("STATUS=starting: waiting for llama.cpp to list the GPUs")
            assert (await loop.sock_recv(systemd, 1000)).startswith(b"READY=1\nSTATUS=listening on")
        finally:
            daemon.terminate()
            _, said = await daemon.communicate()
    log = said.decode()
    assert "llama.cpp has not listed its GPUs yet, a driver may hang; waiting 10 s more" in log
    assert "llama.cpp did not list its GPUs: it took more than 15 s" in log
