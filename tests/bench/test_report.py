"""Test the report of a bench: sentences, tables and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN
from specd.bench.peer import PeerBinary
from specd.bench.report import Report, to_json
from specd.bench.summary import heading, verdict
from specd.bench.tables import Table, details, markdown_document, overview, overviews
from tests.bench.report_builders import K1, K3, N1, report, run, runs

SLOW = report(runs({"plain": [20], "k = 3": [21], "auto": [22]}))
FAST = report(runs({"plain": [20], "k = 3": [25], "auto": [30]}))
CHAT = runs({"plain": [20], "k = 3": [10], "auto": [19]}, "chat")
BOTH = report([*FAST.runs, *CHAT])


def said(reported: Report) -> str:
    return "\n".join(
        sentence
        for _, _, compared, mix in reported.parts()
        for sentence in verdict(reported, compared, mix)
    )


def made_overview(reported: Report) -> Table:
    ((_, _, compared, mix),) = reported.parts()
    return overview("all", compared, mix)


# ------------------------------------------------------------------ sentences


def test_auto_is_compared_with_plain_the_best_length_and_hindsight() -> None:
    words = said(BOTH)
    assert "auto ÷ plain: 1.19; over all answers 23.3 against 20.0 tokens/s" in words
    assert "auto ÷ k = 3 (the best single length for all): 1.51" in words
    assert "chosen by hindsight: 1.07; lowest in chat: 0.95" in words


def test_a_pair_with_a_small_gain_is_not_worth_its_memory() -> None:
    slow = report(runs({"plain": [20, 20, 20], "auto": [22, 22, 22]}))
    assert "auto is 1.10 × plain on the mix, below 1.3 ×" in said(slow)
    assert "not worth its memory (12 MB)" in said(slow)
    assert "worth" not in said(report(runs({"plain": [20, 20], "auto": [30, 30]})))


def test_a_verdict_is_open_if_other_prompts_might_change_it() -> None:
    for one_prompt_each in (SLOW, FAST, BOTH):
        assert "One prompt of each workload is too little data" in said(one_prompt_each)
        assert "not worth" not in said(one_prompt_each)
    words = said(report(runs({"plain": [20, 20, 20], "auto": [20, 24, 40]})))
    assert "other prompts might show up to" in words
    assert "too little data to say whether the pair is worth its memory (12 MB)" in words
    assert "not worth" not in words


def test_the_heading_names_the_peers_build_and_the_verdict_its_best() -> None:
    peers = runs({"peer plain": [19], "peer n_max = 1": [15], "peer n_max = 3": [12]})
    build = PeerBinary(program=("llama-server",), build="build 7", same_build=False)
    met = replace(report([*FAST.runs, *peers]), peer=build)
    words = said(met)
    assert "plain ÷ peer plain (fairness: the same work): 1.05" in words
    assert "auto ÷ the peer's best n_max of each workload: 2.00" in words
    assert "auto ÷ peer n_max = 1 (the peer's best single one for all): 2.00" in words
    assert "auto ÷ the peer's best of each workload, plain or not: 1.58" in words
    assert "Peer: build 7 (another build)" in "\n".join(heading(met))
    assert "peer" not in said(FAST).lower()


def test_the_hostile_workload_has_its_own_sentence() -> None:
    hostile = report([*FAST.runs, *runs({"plain": [20], "auto": [19.8]}, "hostile")])
    assert "with a useless drafter, auto ÷ plain: 0.99 (0.99–0.99)" in said(hostile)
    assert "auto ÷ plain: 1.50" in said(hostile)


def test_the_verdict_counts_the_tokens_of_prompt_lookup() -> None:
    found = replace(FAST.runs[-1], n_looked_up=4, n_looked_up_accepted=3)
    words = said(report([*FAST.runs[:-1], found]))
    assert "prompt lookup found 4 of the 10 tokens that auto drafted, and 3 of these" in words
    assert "lookup" not in said(FAST)


def test_texts_that_differ_are_explained_but_not_a_peers() -> None:
    different = report([run(PLAIN, 20), run(K3, 25, text="other"), run(AUTO, 30)])
    assert "Where texts differ" in said(different)
    peers = report([run(PLAIN, 20), run(AUTO, 30), run(PEER_PLAIN, 20, text="other")])
    assert "Where texts differ" not in said(peers)


def test_overhead_is_reported_in_milliseconds_per_token() -> None:
    timed = report([run(PLAIN, 20, native_share=0.99), run(AUTO, 30)])
    assert "outside of llama.cpp, per token: 0.500 (0.500–0.500) ms" in said(timed)


def test_a_synthetic_target_is_always_labelled() -> None:
    assert "synthetic target" in "\n".join(heading(FAST))
    assert "synthetic target" in markdown_document(FAST)
    assert to_json(FAST)["subject"]["synthetic"] is True
    assert "synthetic" not in "\n".join(heading(report(FAST.runs, padded=False)))


def test_the_heading_names_machine_versions_and_load() -> None:
    words = "\n".join(heading(replace(FAST, notes=["Left out: hostile"])))
    for fact in ("Abacus 9000, 4 threads, no accelerator", "0.3.36", "2026-01-02", "1010 M"):
        assert fact in words
    assert "load average 0.2 before, 3.5 after" in words
    assert "Left out: hostile" in words


def test_a_missing_drafter_is_reported_with_its_reason() -> None:
    engine = replace(SLOW.engine, drafter=None, no_pair_detail="it would not load")
    alone = replace(SLOW, engine=engine)
    assert "Drafter: no model (it would not load)" in "\n".join(heading(alone))
    assert "worth" not in said(alone)


def test_a_bench_without_timed_answers_says_so() -> None:
    assert said(report([run(PLAIN, 20, n_timed=1)])) == "No answer was long enough to be timed."


# ------------------------------------------------------------------ tables


def test_the_overview_has_a_row_per_workload_and_one_for_the_mix() -> None:
    table = made_overview(BOTH)
    assert [header.replace("\n", " ").strip() for header in table.headers] == [
        "workload",
        "plain tokens/s",
        "k = 3",
        "auto",
        "auto ÷ best",
        "auto accepts",
        "same text",
    ]
    assert table.rows == (
        ("json", "20.0", "1.25", "1.50", "1.20", "70%", "2/2"),
        ("chat", "20.0", "0.50", "0.95", "0.95", "70%", "2/2"),
        ("mix", "20.0", "0.79", "1.19", "1.07", "", "4/4"),
    )


def test_a_workload_that_ran_fewer_modes_leaves_their_cells_empty() -> None:
    table = made_overview(report([*FAST.runs, *runs({"plain": [20], "auto": [10]}, "hostile")]))
    assert table.rows[1] == ("hostile", "20.0", "", "0.50", "0.50", "70%", "1/1")


def test_a_peer_has_a_table_of_its_own() -> None:
    peers = {"peer plain": [19.0], "peer n_max = 1": [15.0]}
    met = report([*BOTH.runs, *runs(peers), *runs(peers, "chat")])
    ((_, _, compared, mix),) = met.parts()
    ours, theirs = overviews("all", compared, mix)
    assert not any("peer" in header for header in ours.headers)
    assert [header.replace("\n", " ") for header in theirs.headers] == [
        "workload",
        "plain",
        "n_max = 1",
        "auto ÷ plain",
        "auto ÷ n_max",
        "auto ÷ best",
    ]
    assert theirs.rows[0] == ("json", "0.95", "0.75", "1.58", "2.00", "1.58")
    assert theirs.rows[2][0] == "mix"
    assert len(list(overviews("all", BOTH.comparisons, None))) == 1


def test_tables_fit_a_terminal() -> None:
    named = [replace(run, workload="code_description") for run in BOTH.runs]
    speeds = {"k = 1": [9.9], "peer plain": [1.0], "peer n_max = 1": [1.0], "peer n_max = 3": [1.0]}
    more = [*runs(speeds), *runs(speeds, "code_description"), *runs(speeds, "chat")]
    ((_, _, compared, mix),) = report([*BOTH.runs, *named[:3], *more]).parts()
    console = Console(file=io.StringIO(), width=200)
    tables = [*overviews("temperature 0", compared, mix), details("temperature 0", compared[0])]
    for table in tables:
        console.print(table.rich())
    assert isinstance(console.file, io.StringIO)
    assert max(len(line.rstrip()) for line in console.file.getvalue().splitlines()) <= 80


def test_details_have_one_row_per_mode_as_rich_prints_them() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(details("temperature 0", FAST.comparisons[0]).rich())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "temperature 0" in lines[0]
    rows = [line for line in lines if ".0–" in line]
    assert [row.split("  ")[0].strip() for row in rows] == ["plain", "k = 3", "auto"]


def test_every_markdown_table_is_one() -> None:
    blocks = markdown_document(BOTH).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) == 4  # the overview, the mix, and a table for each of two workloads
    assert all(len({row.count("|") for row in rows}) == 1 for rows in tables)
    assert "| auto | 30.0 (30.0–30.0) | 1.50 (1.50–1.50) | 70% of 10 | 2.5 | 1/1 |" in tables[2]


def test_plots_are_shown_below() -> None:
    assert "![Cost](cost.svg)" in markdown_document(FAST, {"Cost": "cost.svg"})


# ------------------------------------------------------------------ for machines


def test_the_json_holds_every_run_and_no_path_of_the_machine() -> None:
    text = json.dumps(to_json(BOTH))
    data = json.loads(text)
    assert [entry["mode"] for entry in data["runs"][:3]] == ["plain", "k = 3", "auto"]
    assert data["comparisons"][0]["auto_to_hindsight"]["median"] > 1
    assert data["comparisons"][0]["best_fixed"] == data["mixes"][0]["single_fixed"] == "k = 3"
    assert data["mixes"][0]["modes"][2]["mode"] == "auto"
    assert data["machine"]["cpu"] == "Abacus 9000"
    assert "/somewhere" not in text
    assert not {K1.name, N1.name} & {entry["mode"] for entry in data["runs"]}
