"""Compare placements of published models with an expert's table (`placements.toml`)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specd import core
from specd.core import GiveUp
from tests.placement.placement_cases import (
    Case,
    held_in_main_memory,
    layers_by_llama_cpp,
    pieces,
    without,
)
from tests.placement.published_models import PUBLISHED, gpus, shape

ROWS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("placements.toml").read_text(encoding="utf-8")
)["rows"]
_EXPECTED = {"gpus", "loaded", "gives", "place", "draft", "then_n_ctx", "why"}
_GIVES = {"nothing": GiveUp.NOTHING, "drafter": GiveUp.DRAFTER, "anything": GiveUp.ANYTHING}


def _name(row: dict[str, Any]) -> str:
    asked = "".join(f" {k}={v}" for k, v in row.items() if k in {"n_ctx", "cache"})
    pair = " + ".join(filter(None, (row["target"], row.get("drafter"))))
    return f"{row['gpus'] or 'CPU'}: {pair}{asked}"


@pytest.mark.contract("sched.memory")
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_placements_match_the_table(row: dict[str, Any]) -> None:
    asked = {key: value for key, value in row.items() if key not in _EXPECTED}
    case = Case(**asked, held=held_in_main_memory(row.get("loaded", ())))
    free = without(gpus(row["gpus"]), row.get("loaded", ()))
    least = _GIVES[row["gives"]]
    for less in range(least):
        placement = case.place(free, GiveUp(less))
        # No model is unloaded for a drafter that does not fit on the empty machine.
        hopeless = row["gives"] == "drafter" and not row.get("loaded")
        assert not placement.fits or (hopeless and placement == case.place(free, GiveUp.DRAFTER))
    if row["place"] == "others leave":
        return
    for more in range(least, GiveUp.ANYTHING + 1):
        placement = case.place(free, GiveUp(more))
        assert placement.fits
        assert_as_expected(row, placement.spec)


def assert_as_expected(row: dict[str, Any], spec: core.EngineSpec) -> None:
    n_blocks = len(shape(row["target"]).layer_bytes)
    layers = pieces(layers_by_llama_cpp(spec, n_blocks))
    n_on_cpu = layers.pop("", 0)
    number, _, devices = row["place"].rpartition(": ")
    assert list(layers) == devices.replace("CPU", "").split()
    if number:
        few, _, many = number.partition("..")
        assert int(few) <= n_blocks + 1 - n_on_cpu <= int(many or few)
    else:
        assert n_on_cpu == (n_blocks + 1 if devices == "CPU" else 0)
    assert spec.n_ctx == row["then_n_ctx"]
    if "drafter" in row:
        assert_drafter(row["draft"], spec)


def assert_drafter(expected: str, spec: core.EngineSpec) -> None:
    if not expected:
        assert spec.drafter is None
        assert spec.no_pair_reason == core.NoPair.NO_VRAM
        assert re.search(r"\d.*(layers fit on|left for it)", spec.no_pair_detail)
        return
    assert (spec.drafter, spec.no_pair_reason) == (spec.drafter_name, "")
    on_cpu = not spec.devices or spec.draft_on_cpu
    place = "CPU" if on_cpu else (spec.devices or ())[spec.draft_device or 0]
    assert place == (place if expected == "some GPU" and not on_cpu else expected)


def test_the_table_has_all_machines_and_a_reason_for_every_row() -> None:
    assert len(ROWS) >= 60
    assert {"8", "12", "16", "24", "24+24", "48", "80", ""} <= {row["gpus"] for row in ROWS}
    assert all(row["why"].endswith(".") and len(row["why"]) > 15 for row in ROWS)
    assert len({_name(row) + str(row) for row in ROWS}) == len(ROWS)


#: Sizes of the files on Hugging Face, in GB.
@pytest.mark.parametrize(
    "name, gb",
    [
        ("llama3.2:1b Q4_K_M", 0.808),
        ("llama3.2:3b Q4_K_M", 2.02),
        ("llama3.1:8b Q4_K_M", 4.92),
        ("llama3.1:8b Q8_0", 8.54),
        ("llama3.3:70b Q4_K_M", 42.52),
        ("qwen2.5:0.5b Q4_K_M", 0.398),
        ("qwen2.5:1.5b Q4_K_M", 0.986),
        ("qwen2.5:7b Q4_K_M", 4.68),
        ("qwen2.5:14b Q4_K_M", 8.99),
        ("qwen2.5:32b Q4_K_M", 19.85),
        ("qwen2.5:72b Q4_K_M", 47.42),
        ("qwen3:0.6b Q8_0", 0.639),
        ("qwen3:1.7b Q8_0", 1.83),
        ("qwen3:4b Q4_K_M", 2.5),
        ("qwen3:8b Q4_K_M", 5.03),
        ("qwen3:14b Q4_K_M", 9.0),
        ("qwen3:32b Q4_K_M", 19.76),
        ("qwen3:30b-a3b Q4_K_M", 18.56),
        ("gemma3:1b Q4_K_M", 0.806),
        ("gemma3:4b Q4_K_M", 2.49),
        ("gemma3:12b Q4_K_M", 7.3),
        ("gemma3:27b Q4_K_M", 16.55),
        ("mistral-small:24b Q4_K_M", 14.33),
        ("phi4:14b Q4_K_M", 9.05),
        ("gpt-oss:20b MXFP4", 12.1),
        ("gpt-oss:120b MXFP4", 63.4),
        ("deepseek-v2:16b Q4_K_M", 10.36),
        ("granite4:7b-a1b-h Q4_K_M", 4.23),
        ("nomic-embed-text F16", 0.274),
    ],
)
def test_the_models_of_the_table_have_the_published_sizes(name: str, gb: float) -> None:
    assert shape(name).weights_bytes == pytest.approx(gb * 1e9, rel=0.02)


def test_every_model_of_the_table_is_used() -> None:
    used = {name.split()[0] for row in ROWS for name in (row["target"], row.get("drafter")) if name}
    assert used == set(PUBLISHED)
