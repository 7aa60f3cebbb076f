"""`specd bench` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.bench import parse_numbers
from specd.errors import InvalidRequest

BENCH = ["bench", "specd-demo", "--prompts", "2", "--tokens", "16", "--threads", "1"]
BENCH += ["--workloads", "code_completion", "--temperature", "0", "--gpu-layers", "0"]


@pytest.mark.parametrize(
    "text,numbers",
    [("1-8", (1, 2, 3, 4, 5, 6, 7, 8)), ("3", (3,)), ("7,1, 3-4", (1, 3, 4, 7)), ("2,2", (2,))],
)
def test_numbers_are_parsed_as_lists_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers("--drafts", text, 16) == numbers


@pytest.mark.parametrize("text", ["", "0", "1-17", "a", "1,,2", "-3", "5-2", "1-2-3"])
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--streams"):
        parse_numbers("--streams", text, 16)


@pytest.mark.native
def test_a_short_bench_prints_tables_and_writes_figures_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    figures, folder = tmp_path / "figures.json", tmp_path / "report"
    options = ["--drafts", "2", "--json", str(figures), "--report", str(folder)]
    result = CliRunner().invoke(app, [*BENCH, *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "temperature 0" in result.stdout
    assert "auto ÷" in result.stdout
    assert "This takes about" in result.stderr
    assert len(json.loads(figures.read_text())["runs"]) == 6
    document = (folder / "report.md").read_text(encoding="utf-8")
    assert "| auto |" in document
    for picture in ("speed-t0-s1.svg", "acceptance-t0-s1.svg", "cost.svg"):
        assert f"({picture})" in document
        assert (folder / picture).is_file()


@pytest.mark.native
def test_markdown_and_overhead_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    options = ["--overhead", "--markdown"]
    result = CliRunner().invoke(app, [*BENCH, *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("- Target: specd-demo")
    assert "| plain |" in result.stdout
    assert "| auto |" not in result.stdout
    assert "outside of llama.cpp, per token" in result.stdout


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_unwritable_outputs_are_refused_before_the_measurement(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "below")
    with pytest.raises(InvalidRequest, match=f"{option}: "):
        CliRunner().invoke(app, ["bench", option, nowhere], catch_exceptions=False)


@pytest.mark.parametrize(
    "options,complaint",
    [
        (["--target-type", "Q3_K"], "--target-type: one of Q8_0, Q4_0, F16"),
        (["--peer", "vllm"], "--peer: 'vllm' is not supported"),
        (["--peer", "llama-server=no/such/file"], "no/such/file"),
        (["--workloads", "qa,poems"], "no workload is called 'poems'"),
    ],
)
def test_invalid_options_are_refused_before_a_load(options: list[str], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        CliRunner().invoke(app, ["bench", "specd-demo", *options], catch_exceptions=False)
