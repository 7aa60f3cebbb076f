"""Judge the targets without a workload: time per round, same text, sampling, second turn."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets.findings import Findings
from benchmarks.targets.round_time import RoundTime
from benchmarks.targets.verdict import Figure, Verdict
from specd.bench.mode import AUTO, PLAIN
from specd.bench.workload import HOSTILE

#: Slots → milliseconds per round.
_ROUND_MS = {1: 0.5, 8: 2.0}
_SIGNIFICANCE = 0.01


def exact_targets(findings: Findings) -> Iterator[Verdict]:
    yield _rounds(findings)
    yield _same_text(findings)
    yield _fair(findings)
    yield _second_turn(findings)


def _rounds(findings: Findings) -> Verdict:
    figures = []
    for slots, goal in _ROUND_MS.items():
        autos = [r for r in findings.rounds if r.slots == slots and r.mode == AUTO.name]
        if not autos:
            continue
        worst = max(autos, key=lambda each: each.overhead_ms.median)
        figures.append(
            Figure(
                of=f"{slots} slot{'s' * (slots > 1)}, worst at T = {worst.temperature:g}",
                value=worst.overhead_ms.median,
                goal=goal,
                low=worst.overhead_ms.low,
                high=worst.overhead_ms.high,
                at_most=True,
                unit=" ms",
            )
        )
    drafted = "; ".join(_drafted_round(r) for r in _worst_drafted(findings))
    not_judged = []
    if figures and all(r.tokens_per_round <= 1.0 for r in findings.rounds if r.mode == AUTO.name):
        not_judged.append("auto did not draft, so these are plain rounds")
    if figures and drafted:
        not_judged.append(drafted)
    wide = max((r.n_vocab for r in findings.rounds), default=0)
    return Verdict(
        number=6,
        what="time per round outside of llama.cpp, 128k vocabulary, auto, 1 and 8 slots",
        goal="≤ 0.50 ms, ≤ 2.00 ms",
        figures=tuple(figures),
        not_judged=tuple(not_judged),
        remarks=(f"vocabulary of {wide} tokens",) if wide else (),
        reasons=tuple(map(_part, (r for r in findings.rounds if r.slots in _ROUND_MS))),
    )


def _worst_drafted(findings: Findings) -> Iterator[RoundTime]:
    """Yield, per number of slots, the slowest round with drafts of a fixed length."""
    for slots in _ROUND_MS:
        fixed = [r for r in findings.rounds if r.slots == slots and r.mode != AUTO.name]
        if fixed:
            yield max(fixed, key=lambda each: each.overhead_ms.median)


def _drafted_round(time: RoundTime) -> str:
    slots = f"{time.slots} slot{'s' * (time.slots > 1)}"
    return f"{slots}, {time.mode}: {time.overhead_ms.median:.2f} ms"


def _part(time: RoundTime) -> str:
    return (
        f"{time.slots} slot{'s' * (time.slots > 1)}, T = {time.temperature:g}, {time.mode}:"
        f" {time.overhead_ms.median:.2f} of {time.round_ms:.2f} ms,"
        f" {time.tokens_per_round:.2f} tokens per slot and round"
    )


def _same_text(findings: Findings) -> Verdict:
    figures, remarks, reasons = [], [], []
    for each in findings.sameness:
        of = f"T = {each.temperature:g}, of {each.n_prompts} prompts"
        figures.append(Figure(of=of, value=each.n_same, goal=each.n_prompts, digits=0))
        remarks.append(
            f"T = {each.temperature:g}: the plain answers have {each.n_tokens} tokens. Each prompt"
            " was answered twice more with drafts (a fixed length, and auto); in these two answers"
            f" together {each.n_drafted} tokens were drafted and {each.n_accepted} accepted"
        )
        if each.different:
            listed = ", ".join(map(str, each.different))
            reasons.append(f"T = {each.temperature:g}: the answers to prompts {listed} differ")
    if findings.sameness:
        remarks.append(
            "each prompt was evaluated once before its answers, because its last row may round"
            " differently when it is cached"
        )
    n = sum(each.n_prompts for each in findings.sameness)
    return Verdict(
        number=8,
        what=(
            "same seed, speculation on and off, 200 prompts × 128 tokens, batch-invariant CPU (one"
            " thread, flash attention, one slot)"
        ),
        goal="identical, 200 of 200",
        # Fewer prompts do not prove the target.
        figures=(*figures, Figure(of="prompts", value=n, goal=200, digits=0)) if n else (),
        not_judged=tuple(_same_in_workloads(findings)) if n else (),
        remarks=tuple(remarks),
        reasons=tuple(reasons),
    )


def _same_in_workloads(findings: Findings) -> Iterator[str]:
    """Yield how many answers of the workloads have the text of plain decoding."""
    report = findings.report
    for temperature, streams, compared, _ in report.parts():
        ours = [
            f
            for each in compared
            for f in each.modes
            if each.workload != HOSTILE and not f.mode.is_peer and f.mode != PLAIN
        ]
        if streams == 1 and ours:
            same, answers = sum(f.n_same_text for f in ours), sum(f.n_answers for f in ours)
            where = f"in the workloads ({report.spec.n_threads} threads)"
            yield f"{where}, T = {temperature:g}: {same} of {answers} answers"


def _fair(findings: Findings) -> Verdict:
    figures, remarks, reasons = [], [], []
    for each in findings.draws:
        of = f"T = {each.temperature:g}"
        p = Figure(of=f"{of}, p", value=each.p_value, goal=_SIGNIFICANCE, digits=3)
        figures += [p, Figure(of=f"{of}, draws", value=each.n_draws, goal=50_000, digits=0)]
        remarks.append(
            f"{of}: χ² = {each.statistic:.1f} with {each.n_free} degrees of freedom, from"
            f" {each.n_rows} rows; {each.n_drafted} tokens were drafted, {each.n_accepted} accepted"
        )
        if each.n_impossible:
            reasons.append(f"{of}: {each.n_impossible} draws were tokens that the filters exclude")
    return Verdict(
        number=9,
        what="sampled distribution and the target's: χ², 50k draws, T = 0.8 and 1.0",
        goal="not rejected at 1 %",
        figures=tuple(figures),
        remarks=tuple(remarks),
        reasons=tuple(reasons),
    )


def _second_turn(findings: Findings) -> Verdict:
    turns = findings.second_turns
    figures = []
    if turns:
        again = max(each.n_evaluated - each.n_new for each in turns)
        of = f"old tokens evaluated again, worst of {len(turns)} chats"
        figures.append(Figure(of=of, value=again, goal=0, at_most=True, unit=" tokens", digits=0))
    return Verdict(
        number=10,
        what="second turn of a chat (prefix reuse): prompt tokens evaluated",
        goal="only the new ones",
        figures=tuple(figures),
        remarks=tuple(
            f"chat {i}: of {each.n_prompt} tokens {each.n_new} new, {each.n_evaluated} evaluated"
            for i, each in enumerate(turns, 1)
        ),
    )
