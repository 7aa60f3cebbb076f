"""A daemon that is suspended for longer than the engine timeout."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import running
from tests.gguf_files import OllamaStore, write_llama

ENDLESS: dict[str, Any] = {"num_predict": -1, "temperature": 0}
LIMIT_S = 2.0


@pytest.mark.native
@pytest.mark.system
@pytest.mark.parametrize("with_engine", [False, True], ids=["daemon alone", "daemon and engine"])
async def test_a_suspended_daemon_does_not_kill_its_engines(
    tmp_path: Path, with_engine: bool
) -> None:
    """A suspended machine and `docker pause` do this; the daemon resumes first."""
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    async with (
        running(tmp_path, SPECD_ENGINE_TIMEOUT=f"{LIMIT_S}s") as daemon,
        daemon.generate("a", options=ENDLESS) as response,
    ):
        await response.content.readline()
        [engine] = daemon.engines()
        if with_engine:
            engine.suspend()
        daemon.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * LIMIT_S)  # what happens is that time goes by
        daemon.process.send_signal(signal.SIGCONT)
        async with daemon.http.get("/api/ps") as ps:
            assert [model["name"] for model in (await ps.json())["models"]] == ["m:latest"]
        engine.resume()
        for _ in range(200):
            assert "response" in json.loads(await response.content.readline())
        assert daemon.engines() == [engine]
