"""A GPU that falls off the bus during an answer or a load; the driver is a stub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon_process import Daemon
from tests.fakes import nvml
from tests.fakes.nvml import Driver, gpu, uuid
from tests.test_gpus import OFFERED, running, visible_to

pytestmark = pytest.mark.system


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    (tmp_path / "driver").mkdir()
    return Driver(nvml.compiled(tmp_path / "driver"), tmp_path / "machine")


async def told(daemon: Daemon, prompt: str) -> str:
    async with daemon.generate(prompt, model="first", raw=True, stream=False) as response:
        assert response.status == 500
        return str((await response.json())["error"])


async def residents(daemon: Daemon) -> set[str]:
    async with daemon.http.get("/api/ps") as response:
        return {model["name"] for model in (await response.json())["models"]}


@pytest.mark.contract("sched.crash")
@pytest.mark.parametrize("how", ["lost", "deaf"])
async def test_a_gpu_lost_during_an_answer_fails_the_answer_and_the_next_load_uses_another(
    tmp_path: Path, driver: Driver, how: str
) -> None:
    """llama.cpp's CUDA backend then ends its process by an assertion."""
    driver.shows(gpu(0, free=0.2), gpu(1))
    async with running(tmp_path, driver, OFFERED) as daemon:
        assert await visible_to(daemon, "first") == uuid(1)
        driver.shows(gpu(0), gpu(1), f"{how} 1")
        assert "GGML_ASSERT(tensor) failed" in await told(daemon, "!abort")
        assert await residents(daemon) <= {"first:latest"}
        assert await visible_to(daemon, "first") == uuid(0)
        assert await residents(daemon) == {"first:latest"}


async def test_models_are_loaded_into_main_memory_if_no_gpu_is_left(
    tmp_path: Path, driver: Driver
) -> None:
    driver.shows(gpu(0))
    async with running(tmp_path, driver, OFFERED[:1]) as daemon:
        assert await visible_to(daemon, "first") == uuid(0)
        driver.shows(gpu(0), "lost 0")
        assert "GGML_ASSERT(tensor) failed" in await told(daemon, "!abort")
        assert await visible_to(daemon, "first") == ""


async def test_a_gpu_lost_during_a_load_fails_the_load_and_the_next_load_uses_another(
    tmp_path: Path, driver: Driver
) -> None:
    driver.shows(gpu(0, free=0.2), gpu(1))
    (tmp_path / "faults").mkdir()
    faults = str(tmp_path / "faults")
    async with running(tmp_path, driver, OFFERED, FAKE_FAULTS=faults) as daemon:
        for blob in (tmp_path / "models" / "blobs").iterdir():
            (tmp_path / "faults" / blob.name).write_text("load abort", encoding="ascii")
        assert "GGML_ASSERT(tensor) failed" in await told(daemon, "a")
        driver.shows(gpu(0), gpu(1), "lost 1")
        assert await visible_to(daemon, "first") == uuid(0)
