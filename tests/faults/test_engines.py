"""An engine that fails at each stage of a request: what clients see of a real daemon and engine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.dialects import DIALECTS
from tests.faults.trouble import GONE, Trouble, trouble

pytestmark = [
    pytest.mark.native,
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

MEMORY = "perhaps because the system is out of memory"
STALLED = "timed out waiting for the engine to start"
#: Fault → the error of an answer under way, and the error of a load.  An empty one: the load is
#: tried again once the other model is unloaded, which does not happen here.
FAULTS = {
    "killed": (f"signal: SIGKILL, {MEMORY}", ""),
    "segfault": ("signal: SIGSEGV", "signal: SIGSEGV"),
    "native": ("signal: SIGABRT", "signal: SIGABRT"),
    "exit": ("exit status 0", "exit status 0"),
    "stop": ("it was stopped by a signal for 3 s", STALLED),
    "block": ("it made no progress for 5 s", STALLED),
    "garbage": ("it sent an invalid message", "it sent an invalid message"),
    "huge": ("it sent an invalid message", "it sent an invalid message"),
    "half": (f"signal: SIGKILL, {MEMORY}", ""),
    "hang-up": ("exit status 0", "exit status 0"),
    "grandchild": (f"signal: SIGKILL, {MEMORY}", ""),
}
#: One fault of each kind, where the moment makes no difference between the others.
KINDS = ["killed", "native", "stop", "garbage"]
GENERATE = DIALECTS["generate"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_trouble(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trouble]:
    async with trouble(tmp_path_factory.mktemp("trouble")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def troubled(in_trouble: Trouble) -> AsyncIterator[Trouble]:
    yield in_trouble
    await in_trouble.is_as_before()
    grandchild = in_trouble.folder / "grandchild"
    if grandchild.exists():
        os.kill(int(grandchild.read_text(encoding="ascii")), signal.SIGKILL)
        grandchild.unlink()


@pytest.mark.contract("sched.crash", "stream.late-error", "stream.one-end")
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_engine_that_dies_in_decode_ends_each_answer_with_one_error(
    troubled: Trouble, fault: str
) -> None:
    async with troubled.answer_under_way("m") as one, troubled.answer_under_way("m") as two:
        troubled.will(f"late {fault}")
        for answer in (one, two):
            told = GENERATE.told(200, await answer.content.read())
            assert told.startswith(GONE)
            assert FAULTS[fault][0] in told


@pytest.mark.parametrize("fault", KINDS)
async def test_an_engine_that_dies_in_prefill_is_replaced_and_the_client_sees_no_error(
    troubled: Trouble, fault: str
) -> None:
    async with troubled.answer_under_way("m") as begun:
        troubled.will(f"prefill {fault}")
        status, raw = await troubled.ask(GENERATE, stream=True)
        assert GENERATE.is_whole(status, raw)
        assert GENERATE.told(200, await begun.content.read()).startswith(GONE)


@pytest.mark.contract("sched.crash", "stream.early-error")
@pytest.mark.parametrize("fault", KINDS)
async def test_a_prompt_that_kills_every_engine_is_an_error(troubled: Trouble, fault: str) -> None:
    troubled.will(f"prefill {fault}", f"prefill {fault}")
    status, raw = await troubled.ask(GENERATE, stream=True)
    assert status == 500
    assert FAULTS[fault][0] in GENERATE.told(status, raw)


@pytest.mark.contract("sched.load-failure", "sched.load-stall", "stream.early-error")
@pytest.mark.parametrize("fault", [fault for fault, (_, load) in FAULTS.items() if load])
async def test_an_engine_that_dies_in_load_fails_the_request_and_the_next_one_loads(
    troubled: Trouble, fault: str
) -> None:
    async with troubled.daemon.generate("", model="m", keep_alive=0) as response:
        await response.read()
    troubled.will(f"load {fault}")
    status, raw = await troubled.ask(GENERATE, stream=True)
    assert status == 500
    assert FAULTS[fault][1] in GENERATE.told(status, raw)


@pytest.mark.contract("openai.stream-error", "anthropic.stream-error", "stream.one-end")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["native", "stop"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_api_reports_a_dead_engine_in_its_own_error_format(
    troubled: Trouble, dialect: str, fault: str, stream: bool
) -> None:
    troubled.will(f"late {fault}")
    status, raw = await troubled.ask(DIALECTS[dialect], stream=stream)
    assert status == (200 if stream else 500)
    told = DIALECTS[dialect].told(status, raw)
    assert GONE in told
    assert FAULTS[fault][0] in told
    assert stream or isinstance(json.loads(raw), dict)
