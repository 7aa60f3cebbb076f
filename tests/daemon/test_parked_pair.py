"""A pair that was parked and is back at work, over HTTP: daemon, demo pair and llama.cpp are real.

What passes cost is stated by a curve (tests/fakes/timed_engine.py), and no test asks how long
anything took: which answers are drafted for is the same on every machine.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.specd_command import specd
from tests.daemon_process import ROOT, Daemon, running
from tests.gguf_files import OllamaStore
from tests.scripted_model import write_scripted_model

pytestmark = [pytest.mark.native, pytest.mark.timeout(120)]

PROMPTS = ("import os\n\n\ndef ", "class Node:\n    ", "def test_", "import json\nimport sys\n\n\n")
#: What an earlier version wrote of the demo pair after one answer, which had no draft accepted.
LEFT = {
    "drafter": "model",
    "band": 2,
    "by_confidence": [
        [0.21, 6.0], [0.36, 8.0], [0.44, 7.0], [0.5, 5.0], [0.46, 5.0], [0.49, 6.0], [0.61, 5.0],
        [0.74, 4.0], [0.79, 4.0],
    ],
    "by_depth": [[0.44, 18.0]],
    "parked": "does_not_pay",
    "gain": 0.8,
    "n_requests": 1,
    "n_drafted": 15,
    "n_accepted": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`specd pairs` reads the state and the store itself."""
    monkeypatch.setenv("SPECD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))


def serving(tmp_path: Path, curve: str) -> AbstractAsyncContextManager[Daemon]:
    """Run a daemon without prompt lookup, so that only the draft model drafts."""
    module = ("tests.fakes.timed_engine", curve)
    engine = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", *module)
    return running(tmp_path, engine=engine, SPECD_PROMPT_LOOKUP="0")


async def asked(
    daemon: Daemon, prompt: str, model: str = "specd-demo", **options: object
) -> dict[str, Any]:
    """Return the `speculation` object of one answer."""
    defaults = {"num_predict": 32, "temperature": 0.8, "seed": 1}
    body = {"prompt": prompt, "raw": True, "stream": False, "options": defaults | options}
    async with daemon.http.post("/api/generate", json={"model": model, **body}) as reply:
        found: dict[str, Any] = (await reply.json())["speculation"]
    return found


async def further_answers(daemon: Daemon, n: int) -> list[dict[str, Any]]:
    """Return `n` answers' speculation; prompts are like the demo's training data."""
    return [await asked(daemon, PROMPTS[i % len(PROMPTS)], seed=i) for i in range(n)]


async def stop(daemon: Daemon) -> None:
    """Stop the daemon, which writes the history file."""
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.process.wait() == 0


async def pairs(daemon: Daemon, folder: Path, model: str = "specd-demo") -> str:
    """Return the model's line of `specd pairs`."""
    _, line, *_ = (await specd(daemon, "pairs", model, folder=folder)).decode().splitlines()
    return line


async def shown(daemon: Daemon, folder: Path) -> dict[str, Any]:
    """Return the pair's object of `specd ps --json`."""
    listed = json.loads(await specd(daemon, "ps", "--json", folder=folder))["models"]
    [said] = [model["specd"] for model in listed]
    return dict(said)


def is_at_work(speculation: dict[str, Any]) -> bool:
    state, reason = speculation["state"], speculation["reason"]
    return bool((state, reason) == ("active", "") and speculation["draft_n"])


def assert_back_at_work(answers: Sequence[dict[str, Any]]) -> None:
    """Assert that most of the later answers have drafts and report a speedup."""
    later = answers[len(answers) // 2 :]
    working = [speculation for speculation in later if is_at_work(speculation)]
    assert len(working) > len(later) / 2, later
    # An answer of a few steps has no speedup.
    gains = [known for speculation in working if (known := speculation["speedup"]) is not None]
    assert gains, working
    assert statistics.median(gains) > 1.1, gains


async def test_a_pair_that_an_earlier_version_parked_drafts_again(tmp_path: Path) -> None:
    async with serving(tmp_path, "gpu-dear-drafter") as daemon:
        await asked(daemon, PROMPTS[0])
        await stop(daemon)
    file = tmp_path / "state" / "history.json"
    history = json.loads(file.read_bytes())
    [pair] = history["pairs"]  # its key is this machine's
    pair["history"]["bands"] = [LEFT]
    file.write_text(json.dumps(history))
    async with serving(tmp_path, "gpu-dear-drafter") as daemon:
        assert "parked: does_not_pay" in await pairs(daemon, tmp_path)
        assert_back_at_work(await further_answers(daemon, 12))
        said = await shown(daemon, tmp_path)
        assert (said["state"], said["reason"]) == ("active", "")
        assert said["gain"] > 1.0
        await stop(daemon)
        assert "resting" not in await pairs(daemon, tmp_path)


async def test_a_pair_that_first_answers_parked_drafts_again(tmp_path: Path) -> None:
    """The drafter is always wrong in the first answers, and always right in the later ones."""
    scripts = {cue: "".join(f" {cue}{n}" for n in range(48)) for cue in ("x", "y")}
    weights = write_scripted_model(tmp_path / "target.gguf", scripts, None)
    drafter = write_scripted_model(tmp_path / "drafter.gguf", scripts, None, forgets="x")
    OllamaStore(tmp_path / "models").add("pair", weights=weights, draft=drafter)
    async with serving(tmp_path, "gpu-dear-drafter") as daemon:
        bad = await asked(daemon, "say x", model="pair", num_predict=48)
        assert bad["draft_n"] > 0
        assert bad["draft_n_accepted"] == 0
        assert bad["speedup"] < 1.0
        for seed in range(8):
            if bad["reason"] == "does_not_pay":
                break
            bad = await asked(daemon, "say x", model="pair", num_predict=48, seed=seed)
        assert (bad["state"], bad["reason"]) == ("parked", "does_not_pay")
        assert "parked" in bad["detail"]
        assert (await shown(daemon, tmp_path))["state"] == "parked"
        # Drafts that are short enough for a few steps: a speedup is measured over eight of them.
        later = [
            await asked(daemon, "say y", model="pair", seed=seed, draft_num_predict=2)
            for seed in range(12)
        ]
        assert_back_at_work(later)
        assert (await shown(daemon, tmp_path))["state"] == "active"
        await stop(daemon)
        assert "resting" not in await pairs(daemon, tmp_path, "pair")
