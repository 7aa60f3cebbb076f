"""What a person and a program are told of a bench."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from specd import core
from specd.bench.comparison import compare
from specd.bench.machine import Machine
from specd.bench.report import Report, heading, markdown, table, to_json, verdict
from specd.bench.runs import Run
from specd.bench.subject import Subject
from specd.store.facts import GgufFacts

MACHINE = Machine(
    cpu="Abacus 9000",
    n_cores=4,
    memory_bytes=2**33,
    accelerators=(),
    system="Linux",
    python="3.11.0",
    specd="0.1.0",
    llama_cpp_python="0.3.36",
    load_average=0.25,
)


def run(mode: str, tokens_per_s: float, text: str = "same") -> Run:
    generate_ns = round(20e9 / tokens_per_s)
    return Run(
        temperature=0.8,
        prompt=0,
        mode=mode,
        text=text,
        usage=core.Usage(
            n_prompt=9, n_cached=1, n_generated=21, generate_ns=generate_ns, native_ns=generate_ns
        ),
        speculation=core.SpeculationStats(draft_n=8, draft_n_accepted=6, rounds=4),
    )


def report(runs: Sequence[Run], *, padded: bool = True) -> Report:
    memory = core.ModelMemory(device="CPU", total_bytes=12_000_000, vram_bytes=0)
    facts = GgufFacts(
        architecture="llama",
        n_ctx_train=2048,
        n_embd=2048,
        n_parameters=1_010_000_000,
        file_type="Q8_0",
        chat_template=None,
        bos_token="",
        eos_token="",
        has_pooling=False,
        has_vision=False,
        has_audio=False,
    )
    moment = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    return Report(
        subject=Subject(
            name="specd-demo:latest",
            target=Path("/somewhere/private/target.gguf"),
            drafter=Path("/somewhere/private/drafter.gguf"),
            drafter_name="little",
            padded=padded,
        ),
        spec=core.EngineSpec(weights="/somewhere/private/target.gguf", n_threads=4),
        engine=core.EngineFacts(
            n_ctx=2048, n_ctx_train=2048, n_vocab=2048, target=memory, drafter=memory
        ),
        facts=facts,
        machine=MACHINE,
        workload="python",
        n_prompts=1,
        n_tokens=96,
        began=moment,
        ended=moment,
        load_average_after=3.5,
        runs=runs,
        comparisons=compare(runs),
    )


SLOW = report([run("plain", 20), run("k = 3", 21), run("auto", 22)])
FAST = report([run("plain", 20), run("k = 3", 25), run("auto", 30)])


def said(reported: Report) -> str:
    return "\n".join(verdict(reported, reported.comparisons[0]))


def test_auto_is_set_against_the_best_of_the_others() -> None:
    assert "auto ÷ k = 3 (the best of the others): 1.20 (1.20 – 1.20)" in said(FAST)


def test_a_pair_that_gains_little_is_said_not_to_be_worth_its_memory() -> None:
    assert "auto is 1.10 × plain, below 1.3 ×" in said(SLOW)
    assert "not worth its memory (12 MB)" in said(SLOW)
    assert "not worth" not in said(FAST)


def test_texts_that_differ_are_explained() -> None:
    different = report([run("plain", 20), run("k = 3", 25, "other"), run("auto", 30)])
    assert "Where texts differ" in said(different)
    assert "Where texts differ" not in said(FAST)


def test_overhead_is_told_in_milliseconds_per_token() -> None:
    assert "outside of llama.cpp, per token: 0.000 (0.000 – 0.000) ms" in said(FAST)


def test_a_synthetic_target_is_called_one_everywhere() -> None:
    assert "synthetic target" in "\n".join(heading(FAST))
    assert "synthetic target" in markdown(FAST)
    assert to_json(FAST)["subject"]["synthetic"] is True
    assert "synthetic" not in "\n".join(heading(report(FAST.runs, padded=False)))


def test_the_heading_says_where_with_what_and_how_busy() -> None:
    words = "\n".join(heading(FAST))
    for fact in ("Abacus 9000, 4 threads, no accelerator", "0.3.36", "2026-01-02", "1010 M"):
        assert fact in words
    assert "load average 0.2 before, 3.5 after" in words


def test_a_missing_drafter_is_told_with_its_reason() -> None:
    engine = replace(FAST.engine, drafter=None, no_pair_detail="it would not load")
    words = "\n".join(heading(replace(FAST, engine=engine)))
    assert "Drafter: none (it would not load)" in words


def test_the_table_has_one_row_per_mode() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(table(FAST.comparisons[0]))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "temperature 0.8" in lines[0]
    assert [line.split("│")[1].strip() for line in lines if line.startswith("│")] == [
        "plain",
        "k = 3",
        "auto",
    ]


def test_the_markdown_table_is_one() -> None:
    rows = [line for line in markdown(FAST).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert len({row.count("|") for row in rows}) == 1
    assert "| auto | 30.0 (30.0 – 30.0) | 1.50 (1.50 – 1.50) | 6 / 8 (75%) | 2.0 | 1 of 1 |" in rows


def test_an_answerless_bench_says_so() -> None:
    short = replace(FAST.runs[0], usage=core.Usage(n_generated=1, generate_ns=1))
    assert "No answer was long enough" in said(report([short]))


def test_the_json_holds_every_run_and_no_path_of_the_machine() -> None:
    text = json.dumps(to_json(FAST))
    data = json.loads(text)
    assert [entry["mode"] for entry in data["runs"]] == ["plain", "k = 3", "auto"]
    assert data["comparisons"][0]["auto_to_best"]["median"] > 1
    assert data["machine"]["cpu"] == "Abacus 9000"
    assert "/somewhere" not in text
