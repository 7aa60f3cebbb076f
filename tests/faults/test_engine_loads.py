"""Loads that the kernel kills for lack of memory, and engines that may allocate no more."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.dialects import DIALECTS
from tests.faults.trouble import Trouble, trouble

pytestmark = [
    pytest.mark.native,
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]
GENERATE = DIALECTS["generate"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_trouble(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trouble]:
    async with trouble(tmp_path_factory.mktemp("trouble"), has_neighbour=False) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def troubled(in_trouble: Trouble) -> AsyncIterator[Trouble]:
    yield in_trouble
    await in_trouble.is_as_before()
    await in_trouble.ask(GENERATE, stream=False, model="other")


async def unload(troubled: Trouble) -> None:
    async with troubled.daemon.generate("", model="m", keep_alive=0) as response:
        await response.read()


@pytest.mark.contract("sched.oom")
@pytest.mark.parametrize("fault", ["killed", "half", "grandchild"])
async def test_a_load_killed_by_the_kernel_is_retried_without_the_other_models(
    troubled: Trouble, fault: str
) -> None:
    await unload(troubled)
    troubled.will(f"load {fault}")
    status, raw = await troubled.ask(GENERATE, stream=True)
    assert GENERATE.is_whole(status, raw)
    assert await troubled.residents() == {"m:latest"}
    grandchild = troubled.folder / "grandchild"
    if fault == "grandchild":
        os.kill(int(grandchild.read_text(encoding="ascii")), signal.SIGKILL)


@pytest.mark.contract("sched.oom")
async def test_a_load_killed_at_every_attempt_is_an_error(troubled: Trouble) -> None:
    await unload(troubled)
    troubled.will(*["load killed"] * 4)
    status, raw = await troubled.ask(GENERATE, stream=True)
    assert status == 500
    assert "signal: SIGKILL" in GENERATE.told(status, raw)


@pytest.mark.parametrize("moment", ["load", "prefill", "late"])
async def test_an_engine_without_memory_finishes_its_answer_or_reports_an_error(
    troubled: Trouble, moment: str
) -> None:
    """Whether it allocates at that moment depends on llama.cpp."""
    if moment == "load":
        await unload(troubled)
    troubled.will(*[f"{moment} starve"] * 4)
    status, raw = await troubled.ask(GENERATE, stream=True)
    assert status in {200, 500}
    assert GENERATE.is_whole(status, raw) or GENERATE.told(status, raw)
