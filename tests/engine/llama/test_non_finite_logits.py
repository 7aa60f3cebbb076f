"""Models with non-finite logits: damaged weights, or an overflow during an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.daemon_process import running
from tests.gguf_files import SHAPE, OllamaStore, write_llama

pytestmark = pytest.mark.native

OPTIONS: list[dict[str, object]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 0},
    {"temperature": 0.8, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "typical_p": 0.5},
    {"temperature": 0.8, "repeat_penalty": 1.1},
]


def write_broken(path: Path, value: float) -> Path:
    norm = np.full(SHAPE.n_embd, value, np.float32)
    return write_llama(path, tensors={"output_norm.weight": norm})


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_a_model_with_non_finite_logits_is_refused(tmp_path: Path, value: float) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("broken", weights=write_broken(tmp_path / "broken.gguf", value))
    async with (
        running(tmp_path) as daemon,
        daemon.generate("x", model="broken", stream=False) as reply,
    ):
        assert reply.status == 500
        assert "computes no numbers" in (await reply.json())["error"]


async def test_a_drafter_with_non_finite_logits_costs_only_its_drafts(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    drafter = write_broken(tmp_path / "drafter.gguf", np.nan)
    store.add("m", weights=write_llama(tmp_path / "m.gguf"), draft=drafter)
    async with running(tmp_path) as daemon:
        for sampling in OPTIONS:
            options = {"num_predict": 20, "seed": 1, **sampling}
            drafted = await daemon.answer("x", options=options)
            plain = await daemon.answer("x", options=options | {"draft_num_predict": 0})
            texts = ["".join(p["response"] for p in parts) for parts in (drafted, plain)]
            assert texts[0] == texts[1] != ""
            assert drafted[-1]["speculation"]["reason"] == "drafter_load_failed"
