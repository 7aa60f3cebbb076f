"""The acceptance that drafting needs, shown by a daemon over the demo pair and llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.specd_command import specd
from tests.daemon_process import Daemon, running

pytestmark = [pytest.mark.native, pytest.mark.timeout(120)]

DEMO = "specd-demo:latest"
PROMPT = "import os\n\n\ndef "
OPTIONS = {"num_predict": 24, "temperature": 0, "seed": 1}


async def asked(daemon: Daemon, path: str, **fields: Any) -> Any:
    body = {"model": DEMO, "stream": False, **fields}
    async with daemon.http.post(path, json=body) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def loaded(daemon: Daemon) -> dict[str, Any]:
    """Return the `specd` object of the demo in /api/ps."""
    async with daemon.http.get("/api/ps") as reply:
        [model] = (await reply.json())["models"]
    found: dict[str, Any] = model["specd"]
    return found


async def scraped(daemon: Daemon) -> dict[str, float]:
    """Return model → value of the gauge."""
    async with daemon.http.get("/metrics") as reply:
        families = text_string_to_metric_families(await reply.text())
        return {
            sample.labels["model_name"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "specd:acceptance_threshold"
        }


async def of_every_dialect(daemon: Daemon) -> list[dict[str, Any]]:
    """The `speculation` of an answer in each dialect, in the order in which they were given."""
    turns = [{"role": "user", "content": PROMPT}]
    generated = await asked(daemon, "/api/generate", prompt=PROMPT, options=OPTIONS)
    chat = await asked(daemon, "/api/chat", messages=turns, options=OPTIONS)
    openai = await asked(daemon, "/v1/chat/completions", messages=turns, max_tokens=24)
    anthropic = await asked(daemon, "/v1/messages", messages=turns, max_tokens=24)
    assert "threshold" not in openai["timings"]
    return [
        generated["speculation"],
        chat["speculation"],
        openai["specd"]["speculation"],
        anthropic["specd"]["speculation"],
    ]


async def test_the_measured_threshold_is_in_every_output(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await asked(daemon, "/api/generate")  # loads
        at_load = await loaded(daemon)
        assert at_load["requests"] == 0
        assert 0.0 <= at_load["threshold"] <= 1.0
        assert at_load["threshold_source"] == "measured"
        shown = [speculation["threshold"] for speculation in await of_every_dialect(daemon)]
        assert all(0.0 <= threshold <= 1.0 for threshold in shown)
        newest = await loaded(daemon)
        assert newest["threshold"] == shown[-1]
        assert (await scraped(daemon))[DEMO] == pytest.approx(shown[-1], abs=1e-4)
        plain = {"draft_num_predict": 0, **OPTIONS}
        answer = await asked(daemon, "/api/generate", prompt=PROMPT, options=plain)
        assert answer["speculation"]["threshold"] is None
        assert (await loaded(daemon))["threshold"] == shown[-1]


async def test_a_threshold_from_the_settings_is_shown_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path, SPECD_ACCEPTANCE_THRESHOLD="0.35") as daemon:
        answers = await of_every_dialect(daemon)
        assert [speculation["threshold"] for speculation in answers] == [0.35] * 4
        listed = json.loads(await specd(daemon, "ps", "--json", folder=tmp_path))["models"]
        [said] = [model["specd"] for model in listed]
        assert (said["threshold"], said["threshold_source"]) == (0.35, "setting")
        assert await scraped(daemon) == {DEMO: 0.35}
