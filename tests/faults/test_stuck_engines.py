"""An engine whose process cannot be ended: what a driver or a disk that hangs does to it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from specd.runner import State
from tests.runner.processes import answer_of, failure_of, running

_TRACE = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
sys.exit(1) if ptrace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0) else print("seized", flush=True)
sys.stdin.read()
"""


@pytest.mark.system
async def test_an_engine_that_sigkill_does_not_end_is_given_up_and_known() -> None:
    """A tracer that does not look keeps it from ending, as a driver would that hangs."""
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
        assert process._child is not None
        await process._child.gone()
        assert not process.is_stuck
