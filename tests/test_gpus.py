"""Test the daemon with GPUs: the driver and the engines are fakes, all else is real."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from specd.core import BackendDevice
from tests.daemon_process import FAKE_ENGINE, Daemon
from tests.daemon_process import running as running_daemon
from tests.fakes import nvml
from tests.fakes.nvml import Driver, gpu, uuid
from tests.gguf_files import OllamaStore, write_llama

#: The devices that a build with CUDA would list on the simulated machine.
OFFERED = [
    BackendDevice(
        name=f"CUDA{index}",
        backend="CUDA",
        description="Fast",
        integrated=False,
        bus_id=f"0000:{0x41 + index:02x}:00.0",
    )
    for index in range(2)
]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    (tmp_path / "driver").mkdir()
    return Driver(nvml.compiled(tmp_path / "driver"), tmp_path / "machine")


def running(
    tmp_path: Path,
    driver: Driver,
    offered: list[BackendDevice],
    *,
    log: int | None = None,
    **variables: str,
) -> AbstractAsyncContextManager[Daemon]:
    """Start a daemon with the models "first" and "second"."""
    store = OllamaStore(tmp_path / "models")
    for seed, name in enumerate(("first", "second")):
        store.add(name, weights=write_llama(tmp_path / f"{name}.gguf", seed=seed))
    said = msgspec.json.encode(offered).decode()
    variables = {"FAKE_DEVICES": said, "CUDA_VISIBLE_DEVICES": "0,1"} | driver.variables | variables
    return running_daemon(tmp_path, engine=FAKE_ENGINE, log=log, **variables)


async def visible_to(daemon: Daemon, model: str) -> str:
    """Load `model`; return CUDA_VISIBLE_DEVICES of its engine."""
    before = set(daemon.engines())
    await daemon.answer("hello", model=model)
    (engine,) = set(daemon.engines()) - before
    return (await asyncio.to_thread(engine.environ))["CUDA_VISIBLE_DEVICES"]


async def test_a_model_goes_to_a_gpu_with_free_memory_that_is_not_lost(
    tmp_path: Path, driver: Driver
) -> None:
    driver.shows(gpu(0, free=0.2), gpu(1))
    async with running(tmp_path, driver, OFFERED) as daemon:
        assert await visible_to(daemon, "first") == uuid(1)
        driver.shows(gpu(0), gpu(1), "lost 1")
        assert await visible_to(daemon, "second") == uuid(0)


async def test_a_gpu_that_answers_again_is_used_again(tmp_path: Path, driver: Driver) -> None:
    driver.shows(gpu(0, free=0.2), gpu(1))
    async with running(tmp_path, driver, OFFERED) as daemon:
        driver.shows(gpu(0), gpu(1), "lost 1")
        assert await visible_to(daemon, "first") == uuid(0)
        driver.shows(gpu(0, free=0.2), gpu(1))
        assert await visible_to(daemon, "second") == uuid(1)


async def test_a_build_without_cuda_logs_that_it_uses_no_gpus(
    tmp_path: Path, driver: Driver
) -> None:
    driver.shows(gpu(0))
    with (tmp_path / "log").open("wb") as log:
        async with running(tmp_path, driver, [], log=log.fileno()) as daemon:
            assert await visible_to(daemon, "first") == ""
    assert "Fast 9000 is not used: the installed llama.cpp" in (tmp_path / "log").read_text()


async def test_the_user_chooses_one_of_two_gpus(tmp_path: Path, driver: Driver) -> None:
    """CUDA, and so llama.cpp, only sees the second GPU."""
    driver.shows(gpu(0), gpu(1))
    offered = replace(OFFERED[1], name="CUDA0")
    async with running(tmp_path, driver, [offered], CUDA_VISIBLE_DEVICES="1") as daemon:
        assert await visible_to(daemon, "first") == uuid(1)


async def test_after_refused_memory_the_next_load_requests_less(
    tmp_path: Path, driver: Driver
) -> None:
    driver.shows(gpu(0))
    once = tmp_path / "once"
    once.touch()
    with (tmp_path / "log").open("wb") as log:
        refusing = {"FAKE_OUT_OF_MEMORY": str(once)}
        async with running(tmp_path, driver, OFFERED[:1], log=log.fileno(), **refusing) as daemon:
            # So small a model can only give up the GPU.
            assert await visible_to(daemon, "first") == ""
    assert not once.exists()
    assert "first:latest was not loaded" in (tmp_path / "log").read_text()
