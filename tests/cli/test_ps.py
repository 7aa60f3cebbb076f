"""`specd ps`: a table in a pipe, sentences on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specd.cli.ps import pair_lines, print_models
from specd.cli.sync_client import SyncClient
from specd.core import NoPair
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.specd_command import specd
from tests.daemon_process import FAKE_ENGINE, running
from tests.gguf_files import OllamaStore, write_llama

DIGEST = "0123456789abcdef" * 4
COMMON = {
    "digest": DIGEST,
    "size": 43_000_000_000,
    "size_vram": 43_000_000_000,
    "context_length": 8192,
    "expires_at": "2318-01-01",
}
TARGET = {"device": "CUDA0", "size": 41_000_000_000, "devices": {"CUDA0": 41_000_000_000}}
DRAFTER = {
    "name": "llama3.2:1b",
    "pair_source": "registry",
    "rule": "registry: llama3.3*",
    "device": "CUDA0",
    "size": 1_300_000_000,
    "devices": {"CUDA0": 1_300_000_000, "CPU": 0},
}
PAIRED: dict[str, Any] = {
    "target": TARGET,
    "drafter": DRAFTER,
    "state": "active",
    "reason": "",
    "detail": "",
    "gain": 1.6172,
    "requests": 12,
    "draft_n": 100,
    "acceptance_rate": 0.7249,
}
PLAIN: dict[str, Any] = {
    **PAIRED,
    "drafter": None,
    "state": "off",
    "reason": "drafter_no_vram",
    "detail": "llama3.2:1b needs 1.6 GB, 0.4 GB are free on CUDA0.",
    "gain": None,
    "requests": 0,
    "draft_n": 0,
    "acceptance_rate": 0.0,
}


async def printed(*models: dict[str, Any], terminal: int = 0, prefix: str = "") -> str:
    """terminal: its columns; 0 for a pipe."""
    console = Console(
        file=io.StringIO(),
        width=terminal or 1000,
        force_terminal=bool(terminal),
        color_system=None,
        highlight=False,
    )
    async with FakeDaemon({"/api/ps": {"models": list(models)}}).serve() as url:
        await asyncio.to_thread(print_models, SyncClient(url), console, prefix)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_a_pipe_gets_two_more_columns() -> None:
    common = COMMON | {"size": 1000}
    models = [
        {**common, "name": "a:1", "size_vram": 1000, "specd": PAIRED},
        {**common, "name": "b:1", "size_vram": 250, "specd": PLAIN},
        {**common, "name": "c:1", "size_vram": 0},
    ]
    header, paired, refused, foreign = (await printed(*models)).splitlines()
    assert header.split() == [
        "NAME",
        "ID",
        "SIZE",
        "PROCESSOR",
        "CONTEXT",
        "UNTIL",
        "DRAFTER",
        "GAIN",
    ]
    assert "100% GPU" in paired
    assert paired.endswith("    llama3.2:1b               1.62×")
    assert "75%/25% CPU/GPU" in refused
    assert refused.endswith("    none (drafter_no_vram)    -")
    assert "100% CPU" in foreign
    assert foreign.split()[-2:] == ["none", "-"]


async def test_a_terminal_gets_ollamas_columns_with_the_drafter_below() -> None:
    models = [
        {**COMMON, "name": "llama3.3:70b", "specd": PAIRED},
        {**COMMON, "name": "qwen3:32b", "specd": PLAIN},
        {**COMMON, "name": "foreign:1b"},
    ]
    assert await printed(*models, terminal=80) == (
        "NAME            ID              SIZE     PROCESSOR    CONTEXT    UNTIL\n"
        "llama3.3:70b    0123456789ab    43 GB    100% GPU     8192       Forever\n"
        "  drafts: llama3.2:1b (registry) · 1.3 GB on CUDA0 · 1.62× over 12 requests ·\n"
        "    72% accepted\n"
        "  target: 41 GB on CUDA0\n"
        "qwen3:32b       0123456789ab    43 GB    100% GPU     8192       Forever\n"
        "  plain: drafter_no_vram — llama3.2:1b needs 1.6 GB, 0.4 GB are free on CUDA0.\n"
        "foreign:1b      0123456789ab    43 GB    100% GPU     8192       Forever\n"
    )


@pytest.mark.parametrize("columns", [60, 80, 200])
async def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    detail = "The drafter tiny:latest has another vocabulary than it: " + "word " * 40
    model = {**COMMON, "name": "m:1", "specd": PLAIN | {"detail": detail}}
    header, row, *ours = (await printed(model, terminal=columns)).splitlines()
    assert header.startswith("NAME")
    assert row.startswith("m:1")
    assert all(len(line) <= columns for line in ours)
    assert all(line.startswith("  ") for line in ours)
    assert " ".join(" ".join(ours).split()) == f"plain: drafter_no_vram — {detail.strip()}"


@pytest.mark.parametrize("reason", NoPair)
async def test_every_reason_is_shown_in_a_pipe_and_on_a_terminal(reason: NoPair) -> None:
    model = {**COMMON, "name": "m:1", "specd": PLAIN | {"reason": reason, "detail": "Why."}}
    assert f"none ({reason})" in await printed(model)
    assert f"  plain: {reason} — Why.\n" in await printed(model, terminal=80)


@pytest.mark.parametrize(
    "source, threshold, of_answers, before",
    [
        ("measured", 0.214, "72% accepted, pays from 21%", "pays from 21% accepted"),
        ("measured", 1.0, "72% accepted, no draft can pay here", "no draft can pay here"),
        ("setting", 0.6, "72% accepted, stops below 60%", "stops below 60% accepted"),
        ("setting", 1.0, "72% accepted, stops below 100%", "stops below 100% accepted"),
    ],
)
def test_the_acceptance_that_drafting_needs_is_shown(
    source: str, threshold: float, of_answers: str, before: str
) -> None:
    known = {**PAIRED, "threshold": threshold, "threshold_source": source}
    assert pair_lines(known)[0].endswith(f" · 1.62× over 12 requests · {of_answers}")
    fresh = known | {"gain": None, "requests": 0, "draft_n": 0}
    assert pair_lines(fresh)[0].endswith(f" · 1.3 GB on CUDA0 · {before}")


def test_a_parked_drafter_is_shown_with_the_reason() -> None:
    said = {"state": "parked", "reason": "does_not_pay", "detail": "it lost: slow", "gain": 0.98}
    assert pair_lines(PAIRED | said) == [
        "parked: llama3.2:1b (registry) · 1.3 GB on CUDA0 · 0.98× over 12 requests · 72% accepted",
        "target: 41 GB on CUDA0",
        "does_not_pay — it lost: slow",
    ]


def test_an_answer_too_short_for_a_draft_does_not_count_as_parked() -> None:
    said = {"state": "active", "reason": "answer_too_short", "detail": "it was short", "gain": None}
    assert pair_lines(PAIRED | said) == [
        "drafts: llama3.2:1b (registry) · 1.3 GB on CUDA0 · 12 requests",
        "target: 41 GB on CUDA0",
        "answer_too_short — it was short",
    ]


def test_active_prompt_lookup_is_shown_with_the_missing_drafter() -> None:
    said = {"state": "active", "gain": 1.4, "requests": 1}
    assert pair_lines(PLAIN | said | {"detail": "Too big."}) == [
        "drafts: prompt lookup · 1.40× over 1 request",
        "no drafter: drafter_no_vram — Too big.",
    ]


def test_a_target_on_several_devices_is_shown_by_device() -> None:
    devices = {"CUDA0": 24_000_000_000, "CUDA1": 17_000_000_000, "CPU": 0}
    target = TARGET | {"devices": devices}
    where = "target: 24 GB on CUDA0, 17 GB on CUDA1"
    assert where in pair_lines(PAIRED | {"target": target})
    assert where in pair_lines(PLAIN | {"target": target})


def test_before_the_first_answer_no_gain_is_shown() -> None:
    fresh = {"state": None, "gain": None, "requests": 0, "draft_n": 0}
    drafts, _ = pair_lines(PAIRED | fresh)
    assert drafts == "drafts: llama3.2:1b (registry) · 1.3 GB on CUDA0"
    assert pair_lines({}) == []
    assert pair_lines({"drafter": None, "reason": "", "detail": ""}) == ["plain"]


async def test_the_program_prints_what_the_daemon_has_loaded(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        await daemon.answer("a b")
        header, line = (await specd(daemon, "ps", folder=tmp_path)).decode().splitlines()
        assert header.split()[-2:] == ["DRAFTER", "GAIN"]
        assert line.startswith("m:latest")
        assert "none (drafter_not_found)" in line
        [told] = json.loads(await specd(daemon, "ps", "M", "--json", folder=tmp_path))["models"]
        async with daemon.http.get("/api/ps") as response:
            [model] = (await response.json())["models"]
        assert told["specd"] == model["specd"]
        assert told["specd"]["requests"] == 1
        nothing = json.loads(await specd(daemon, "ps", "other", "--json", folder=tmp_path))
        assert nothing == {"models": []}


@pytest.mark.parametrize(
    "found, line",
    [
        (None, ""),
        (
            {"speculation": False, "parallel": False, "prompt_cache": False},
            (
                "same text for a seed: not guaranteed: with and without drafts; alone or with"
                " parallel requests; with a cached prompt or a new one."
            ),
        ),
        (
            {"speculation": True, "parallel": True, "prompt_cache": False, "enforced": []},
            (
                "same text for a seed: with and without drafts; alone or with parallel requests."
                " Not guaranteed: with a cached prompt or a new one."
            ),
        ),
        (
            {
                "speculation": True,
                "parallel": True,
                "prompt_cache": True,
                "enforced": ["no_drafts", "cache_per_slot"],
            },
            (
                "same text for a seed: with and without drafts; alone or with parallel requests;"
                " with a cached prompt or a new one. (SPECD_EXACT: drafting off, one cache per"
                " slot)"
            ),
        ),
    ],
)
def test_the_conditions_of_exactness_are_shown(found: Any, line: str) -> None:
    assert pair_lines({**PAIRED, "exact": found})[2:] == ([line] if line else [])
