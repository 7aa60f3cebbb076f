"""Judge the targets of speed from the runs of all workloads: 1 to 5, and 7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.targets.findings import Findings
from benchmarks.targets.verdict import Figure, Verdict
from specd.bench.comparison import Comparison
from specd.bench.mix import Mix, Ratio, mix_ratio
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.report import Report
from specd.bench.runs import Run
from specd.bench.summary import format_ratio
from specd.bench.workload import HOSTILE

#: llama-server's default draft length.
PEER_DEFAULT = Mode.peer_draft(3)
_GREEDY, _USUAL = 0.0, 0.8


def speed_targets(findings: Findings) -> Iterator[Verdict]:
    report = findings.report
    yield _plain(report)
    yield _greedy(report)
    yield _drawn(report)
    yield _hindsight(report)
    yield _hostile(report)
    yield _streams(report)


def _mixes(report: Report) -> list[Mix]:
    return [mix for mix in report.mixes if mix.streams == 1]


def _mix(report: Report, temperature: float) -> Mix | None:
    return next((mix for mix in _mixes(report) if mix.temperature == temperature), None)


def _of(temperature: float) -> str:
    return f"T = {temperature:g}"


def _figure(of: str, ratio: Ratio | None, goal: float) -> Iterator[Figure]:
    if ratio is not None:
        yield Figure(of=of, value=ratio.value, goal=goal, low=ratio.low, high=ratio.high)


# --------------------------------------------------------------------------- against a peer


def _plain(report: Report) -> Verdict:
    figures = [
        figure
        for mix in _mixes(report)
        for figure in _figure(_of(mix.temperature), mix.plain_to_peer_plain, 1.00)
    ]
    remarks = [] if report.peer is None else [f"peer: {report.peer.build}"]
    if report.peer is not None and not report.peer.same_build:
        remarks.append("the peer is another build than the engine: `make peer` builds the same one")
    return Verdict(
        number=1,
        what="plain decoding, specd ÷ llama-server of the same llama.cpp build",
        goal="≥ 1.00",
        figures=tuple(figures),
        remarks=tuple(remarks),
        reasons=tuple(_time_outside_models(report.runs, PLAIN)),
    )


def _greedy(report: Report) -> Verdict:
    mix = _mix(report, _GREEDY)
    figures: list[Figure] = []
    remarks: list[str] = []
    if mix is not None:
        figures += _figure("its best n_max of each workload", mix.auto_to_peer_draft, 1.03)
        single = mix.single_peer.n_draft if mix.single_peer is not None else 0
        figures += _figure(f"its best single n_max ({single})", mix.auto_to_peer_single, 1.12)
        rivals = {
            each.workload: each.auto_to_peer_draft.median
            for each in _compared(report, _GREEDY)
            if each.auto_to_peer_draft is not None
        }
        remarks += _extremes("by workload", rivals)
        if mix.auto_to_peer_best is not None:
            best = format_ratio(mix.auto_to_peer_best)
            remarks.append(f"÷ its best of each workload, plain decoding included: {best}")
    return Verdict(
        number=2,
        what="greedy, same pair, specd (auto) ÷ llama-server at its best n_max",
        goal="≥ 1.03 per workload's best, ≥ 1.12 over the best single one on the mix",
        figures=tuple(figures),
        remarks=tuple(remarks),
        reasons=(
            *_time_outside_models(report.runs, AUTO, _GREEDY),
            *_acceptance_remark(report, _GREEDY),
        ),
    )


def _drawn(report: Report) -> Verdict:
    mix = _mix(report, _USUAL)
    with_pair = mix_ratio(report.runs, 1, _USUAL, AUTO, PEER_DEFAULT)
    remarks, not_judged = [], []
    if mix is not None and mix.auto_to_peer_draft is not None:
        remarks.append(f"÷ its best n_max of each workload: {format_ratio(mix.auto_to_peer_draft)}")
    if mix is not None and mix.auto_to_peer_plain is not None:
        ratio = format_ratio(mix.auto_to_peer_plain)
        not_judged.append(f"÷ llama-server without a draft {ratio}")
    peer = mix_ratio(report.runs, 1, _USUAL, PEER_DEFAULT, PEER_PLAIN)
    if peer is not None:
        not_judged.append(f"with the draft llama-server runs at {peer.value:.2f} × its plain speed")
    return Verdict(
        number=3,
        what="temperature 0.8, same pair, specd (auto) ÷ llama-server with that pair",
        goal="≥ 1.60",
        figures=tuple(_figure("its default n_max (3)", with_pair, 1.60)),
        not_judged=tuple(not_judged),
        remarks=tuple(remarks),
        reasons=(
            *_time_outside_models(report.runs, AUTO, _USUAL),
            *_acceptance_remark(report, _USUAL),
        ),
    )


def _streams(report: Report) -> Verdict:
    """Judge several streams.  The wall time includes the prompts."""
    figures: list[Figure] = []
    remarks: list[str] = []
    for mix in report.mixes:
        if mix.streams == 1:
            continue
        of = f"{mix.streams} streams, {_of(mix.temperature)}"
        figures += _figure(of, mix.auto_to_peer_best, 1.00)
        speeds = (f"{each.mode.name} {each.tokens_per_s:.1f}" for each in mix.modes)
        remarks.append(f"{of}, total tokens/s: {', '.join(speeds)}")
    return Verdict(
        number=7,
        what="4 and 8 streams, total tokens/s, specd (auto) ÷ llama-server with or without draft",
        goal="≥ 1.00",
        figures=tuple(figures),
        remarks=tuple(remarks),
    )


# --------------------------------------------------------------------------- against ourselves


def _hindsight(report: Report) -> Verdict:
    figures: list[Figure] = []
    remarks: list[str] = []
    for mix in _mixes(report):
        known = {
            each.workload: each.auto_to_hindsight
            for each in _compared(report, mix.temperature)
            if each.auto_to_hindsight is not None and each.workload != HOSTILE
        }
        if known:
            lowest = min(known, key=lambda workload: known[workload].median)
            spread = known[lowest]
            figures.append(
                Figure(
                    of=f"{_of(mix.temperature)}, lowest workload ({lowest})",
                    value=spread.median,
                    goal=0.98,
                    low=spread.low,
                    high=spread.high,
                )
            )
            medians = {workload: each.median for workload, each in known.items()}
            remarks += _extremes(f"{_of(mix.temperature)}, by workload", medians)
        if mix.auto_to_hindsight is not None:
            mean = format_ratio(mix.auto_to_hindsight)
            remarks.append(f"{_of(mix.temperature)}, mean over the workloads: {mean}")
        length = mix.single_fixed.n_draft if mix.single_fixed is not None else 0
        of = f"{_of(mix.temperature)}, mix ÷ k = {length}"
        figures += _figure(of, mix.auto_to_single_fixed, 1.05)
    return Verdict(
        number=4,
        what="specd (auto) ÷ max(plain, best fixed k) of each workload, chosen by hindsight",
        goal="≥ 0.98 on every workload, ≥ 1.05 over the best single k on the mix",
        figures=tuple(figures),
        remarks=(
            *remarks,
            "auto is the default: it drafts with the model and with prompt lookup",
            "hindsight is biased: the best of several modes is also the one with the most luck",
        ),
        reasons=(
            *_time_outside_models(report.runs, AUTO),
            *_acceptance_remark(report, _GREEDY),
            *_acceptance_remark(report, _USUAL),
        ),
    )


def _hostile(report: Report) -> Verdict:
    figures = []
    remarks = []
    for each in report.comparisons:
        spread = each.auto_to_plain
        if each.workload != HOSTILE or spread is None:
            continue
        figures.append(
            Figure(
                of=_of(each.temperature),
                value=spread.median,
                goal=0.98,
                low=spread.low,
                high=spread.high,
            )
        )
        auto = each.of_mode(AUTO.name)
        if auto is not None:
            remarks.append(
                f"{_of(each.temperature)}: auto drafted {auto.drafted} tokens, {auto.accepted} of"
                f" them were accepted; {auto.looked_up} of the drafted and"
                f" {auto.looked_up_accepted} of the accepted tokens are prompt lookup's"
            )
    return Verdict(
        number=5,
        what="hostile workload (useless drafter), specd (auto) ÷ plain",
        goal="≥ 0.98",
        figures=tuple(figures),
        remarks=tuple(remarks),
        reasons=tuple(
            _time_outside_models([r for r in report.runs if r.workload == HOSTILE], AUTO)
        ),
    )


# --------------------------------------------------------------------------- why


def _compared(report: Report, temperature: float) -> list[Comparison]:
    return [
        each
        for each in report.comparisons
        if each.streams == 1 and each.temperature == temperature and each.modes
    ]


def _extremes(words: str, known: dict[str, float]) -> Iterator[str]:
    if len(known) > 1:
        low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
        yield f"{words}: from {known[low]:.2f} ({low}) to {known[high]:.2f} ({high})"


def _time_outside_models(
    runs: Sequence[Run], mode: Mode, temperature: float | None = None
) -> Iterator[str]:
    """Yield the share of the time outside of the models' passes."""
    timed = [
        (run.seconds, run.native_s)
        for run in runs
        if run.mode == mode
        and run.native_s is not None
        and temperature in {None, run.temperature}
        and run.streams == 1
    ]
    total = sum(seconds for seconds, _ in timed)
    if total:
        outside = total - sum(native for _, native in timed)
        yield f"{mode.name} spends {outside / total:.1%} of its time outside of the models' passes"


def _acceptance_remark(report: Report, temperature: float) -> Iterator[str]:
    """Yield the acceptance rate, and the cost of a wide pass compared with a plain one."""
    autos = [f for each in _compared(report, temperature) if (f := each.of_mode(AUTO.name))]
    drafted, accepted = sum(f.drafted for f in autos), sum(f.accepted for f in autos)
    if drafted:
        yield f"{_of(temperature)}: {accepted / drafted:.0%} of auto's drafted tokens were accepted"
    costs = dict(report.engine.costs.target_s)
    if costs.get(1) and costs.get(4):
        yield f"a target pass of 4 rows costs {costs[4] / costs[1]:.2f} × a pass of one row"
