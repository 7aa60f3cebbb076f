"""Test that the page and the README's table match the data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.targets.docs_folder import read_all, rendered, write_docs
from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.page import BEGIN, END, page, readme_table
from specd.core import ModelMemory
from specd.errors import InvalidRequest
from tests.bench.report_builders import K1, report, run, runs
from tests.benchmarks.targets.findings_builder import findings

GREEDY = {"plain": [20, 21], "k = 3": [25, 26], "auto": [30, 31], "peer plain": [19, 20]}
FOUND = findings(report([*runs(GREEDY), *runs(GREEDY, "chat")]))
#: Figures, not digits in a word or a file name.
_NUMBER = re.compile(r"(?<![\w.#])\d+(?:\.\d+)?(?![\w.])")


def on_gpu() -> Findings:
    memory = ModelMemory(device="CUDA0", total_bytes=9_000_000, vram_bytes=8_000_000)
    engine = replace(FOUND.report.engine, target=memory, drafter=memory)
    machine = replace(FOUND.report.machine, accelerators=("Board 7",))
    return replace(FOUND, report=replace(FOUND.report, engine=engine, machine=machine))


def test_findings_are_read_again_without_texts_and_paths() -> None:
    again = Findings.of_json(FOUND.to_json())
    assert judge(again) == judge(FOUND)
    assert page([again], {}) == page([FOUND], {})
    assert [each.mode for each in again.report.runs] == [each.mode for each in FOUND.report.runs]


def test_texts_are_stored_as_digests() -> None:
    different = report([run(K1, 20, text="a secret"), *runs({"plain": [20]})])
    text = replace(FOUND, report=different).to_json()
    assert "secret" not in text
    ((_, _, compared, _),) = Findings.of_json(text).report.parts()
    ours = compared[0].of_mode(K1.name)
    assert ours is not None
    assert ours.n_same_text == 0


def test_the_data_name_no_folder_of_the_machine() -> None:
    assert "/somewhere" not in FOUND.to_json()
    assert "target.gguf" in FOUND.to_json()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "report": 3}'])
def test_a_file_without_findings_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Findings.of_json(text)


def test_every_figure_of_the_ten_changes_with_the_data() -> None:
    """Scaled times change every figure of the table."""
    slower = [
        replace(each, seconds=each.seconds * (1.7 if each.mode.is_peer else 1.0))
        for each in FOUND.report.runs
    ]
    other = replace(findings(report(slower)), rounds=(), draws=())
    before, after = ([each.measured for each in judge(found)] for found in (FOUND, other))
    for number in (1, 6, 9):
        assert before[number - 1] != after[number - 1]


def test_without_data_the_page_has_no_figure() -> None:
    bare = re.sub(r"Target \d+|`[^`]*`|```.*?```", "", page([], {}), flags=re.DOTALL)
    assert _NUMBER.findall(bare) == []
    assert bare.count("Not measured") == 2


def test_the_ten_are_on_the_page_with_outcome_date_builds_and_commands() -> None:
    text = page([FOUND], {FOUND.slug: ["images/abacus/cost.svg"]})
    for each in judge(FOUND):
        assert f"| {each.number} | {each.what} | {each.goal} | {each.measured} |" in text
    for fact in ("2026-01-02", "0123abc", "0.3.36", "Abacus 9000", "`make peer`", "synthetic"):
        assert fact in text
    assert "(images/abacus/cost.svg)" in text
    assert "## On a GPU\n\nNot measured" in text


def test_a_missed_target_is_shown_with_its_figure() -> None:
    slow = report(runs({"plain": [19, 19], "peer plain": [20, 20], "auto": [19, 19]}))
    text = page([replace(FOUND, report=slow)], {})
    assert "**FAIL**" in text
    assert "- missed: T = 0: 0.95" in text


def test_a_gpu_gets_its_section_and_keeps_the_cpus() -> None:
    text = page([on_gpu(), FOUND], {})
    assert "## Board 7, 1.0 B Q8_0" in text
    assert "## Abacus 9000, 4 threads" in text
    assert "Drafter: 8 of 9 MB in buffers of CUDA0" in text
    assert "## On a GPU" not in text


def test_a_folder_keeps_one_file_per_machine_and_its_pictures(tmp_path: Path) -> None:
    for found in (FOUND, on_gpu(), FOUND):
        write_docs(found, tmp_path)
    assert len(read_all(tmp_path)) == 2
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert text == rendered(tmp_path)
    named = re.findall(r"\]\((images/[^)]+)\)", text)
    assert len(named) > 2
    assert all((tmp_path / name).is_file() for name in named)
    assert json.loads((tmp_path / "benchmarks" / f"{FOUND.slug}.json").read_text())["format"]


def test_the_readmes_table_is_the_newest_machines() -> None:
    table = readme_table([FOUND])
    assert table.startswith(BEGIN)
    assert table.endswith(END)
    assert table.count("\n| ") == 12
    assert "Abacus 9000, 4 threads, 2026-01-02" in table
    assert "make bench" in readme_table([])
