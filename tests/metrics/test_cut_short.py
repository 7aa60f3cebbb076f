"""The records of incomplete answers, with a real engine."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

pytestmark = pytest.mark.native


def lines(log: Path) -> list[dict[str, Any]]:
    said = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in said if line["logger"] == "specd.requests"]


async def shown(daemon: Daemon, name: str) -> float:
    """Return a value from `/metrics`; 0 if the metric has no sample."""
    async with daemon.http.get("/metrics") as response:
        found = re.search(rf"^specd:{name}(?:{{.*}})? (\S+)$", await response.text(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def until(daemon: Daemon, name: str, value: float) -> None:
    async def is_shown() -> bool:
        return await shown(daemon, name) == value

    await wait_until(is_shown)


async def test_tokens_and_waits_of_answers_that_were_cut_short(tmp_path: Path) -> None:
    weights = write_llama(tmp_path / "m.gguf", chat_template=None)
    OllamaStore(tmp_path / "models").add("m", weights=weights)
    log = tmp_path / "log"
    options = {"num_predict": -1, "num_ctx": 256}
    with log.open("wb") as file:
        async with running(
            tmp_path,
            log=file.fileno(),
            SPECD_LOG_FORMAT="json",
            SPECD_SHUTDOWN_GRACE="0",
            OLLAMA_NUM_PARALLEL="1",
        ) as daemon:
            async with daemon.generate("Hello", options=options) as response:
                await response.content.readline()
            await until(daemon, "http_requests_in_flight", 1)  # the scrape is the one request
            n_prompt = await shown(daemon, "prompt_tokens_total")
            async with daemon.generate("Hello", options=options) as response:
                await response.content.readline()
                waiting = asyncio.ensure_future(daemon.answer("Hello", options=options))
                await until(daemon, "num_requests_waiting", 1)
                daemon.process.send_signal(signal.SIGTERM)
                await response.read()
                await asyncio.gather(waiting, return_exceptions=True)
            assert await daemon.process.wait() == 0
    left, stopped, never = lines(log)
    assert (left["finish"], left["prompt_tokens"], left["cached_tokens"]) == ("abort", n_prompt, 0)
    assert (stopped["finish"], stopped["prompt_tokens"]) == ("error", n_prompt)
    assert stopped["cached_tokens"] == n_prompt - 1
    assert (never["status"], never["error"], never["finish"]) == (503, "ShuttingDown", "error")
    assert never["queue_ms"] + never["load_ms"] == pytest.approx(never["total_ms"], abs=0.2)
    assert "prompt_tokens" not in never
