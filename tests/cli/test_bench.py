"""`specd bench` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.bench import parse_lengths
from specd.errors import InvalidRequest

BENCH = ["bench", "specd-demo", "--prompts", "2", "--tokens", "16", "--threads", "1"]


@pytest.mark.parametrize(
    "text,lengths",
    [("1-8", (1, 2, 3, 4, 5, 6, 7, 8)), ("3", (3,)), ("7,1, 3-4", (1, 3, 4, 7)), ("2,2", (2,))],
)
def test_draft_lengths_are_read_as_lists_and_ranges(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "1-17", "a", "1,,2", "-3", "5-2", "1-2-3"])
def test_draft_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--drafts"):
        parse_lengths(text)


@pytest.mark.native
def test_a_short_bench_prints_tables_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    figures = tmp_path / "figures.json"
    options = ["--drafts", "2", "--temperature", "0", "--gpu-layers", "0", "--json", str(figures)]
    result = CliRunner().invoke(app, [*BENCH, *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "temperature 0" in result.stdout
    assert "auto ÷" in result.stdout
    assert len(json.loads(figures.read_text())["runs"]) == 6


@pytest.mark.native
def test_markdown_and_overhead_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    options = ["--overhead", "--markdown", "--gpu-layers", "0", "--temperature", "0.8"]
    result = CliRunner().invoke(app, [*BENCH, *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("- Target: specd-demo")
    assert "| plain |" in result.stdout
    assert "| auto |" not in result.stdout
    assert "outside of llama.cpp, per token" in result.stdout


@pytest.mark.parametrize("name", ["no/such/folder.json", "."])
def test_figures_that_could_not_be_kept_are_not_measured(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="--json: "):
        CliRunner().invoke(app, ["bench", "--json", str(tmp_path / name)], catch_exceptions=False)
