"""A bench in sentences: what was measured, and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specd.bench.comparison import Comparison
from specd.bench.mix import Mix, Ratio
from specd.bench.mode import AUTO
from specd.bench.report import Report
from specd.bench.runs import MedianRange
from specd.bench.workload import HOSTILE

#: Below this gain the drafter's memory is better spent on the target.
WORTH_IT = 1.3


def heading(report: Report) -> Iterator[str]:
    """Yield lines that say what was measured, where and with what."""
    machine, spec = report.machine, report.spec
    accelerators = ", ".join(machine.accelerators) or "no accelerator"
    load = f"{machine.load_average:.1f} before, {report.load_average_after:.1f} after"
    yield _target(report)
    yield _drafter(report)
    if report.peer is not None:
        same = "the same build as specd's engine" if report.peer.same_build else "another build"
        yield f"Peer: {report.peer.build} ({same})"
    yield (
        f"Machine: {machine.cpu}, {spec.n_threads} threads, {accelerators},"
        f" KV cache {spec.kv_cache_type}; load average {load}"
    )
    yield (
        f"Versions: specd {machine.specd}, llama-cpp-python {machine.llama_cpp_python},"
        f" Python {machine.python}; {report.began:%Y-%m-%d %H:%M %Z}"
    )
    repeats = f" in each of {report.n_repeats} runs" if report.n_repeats > 1 else ""
    yield (
        f"Workloads: {', '.join(report.workloads)}; {report.n_prompts} prompts of each{repeats};"
        f" at most {report.n_tokens} tokens per answer"
    )
    yield (
        "Figures are medians over the prompts (smallest–largest); over several workloads, geometric"
        " means [90 % interval for other prompts]"
    )
    yield from report.notes


def _target(report: Report) -> str:
    facts = report.facts
    size = f"{facts.n_parameters / 1e6:.0f} M parameters"
    words = (
        f"Target: {report.subject.name}, {size}{', ' + facts.file_type if facts.file_type else ''}"
    )
    if report.subject.padded:
        words += " (synthetic target: a small model padded to this size; it writes the small"
        words += " model's text in the time of a model of this size)"
    return words


def _drafter(report: Report) -> str:
    memory = report.engine.drafter
    if memory is None:
        reason = report.engine.no_pair_detail or "none was requested"
        return f"Drafter: no model ({reason}), so auto uses prompt lookup alone"
    return f"Drafter: {report.subject.drafter_name}, {memory.total_bytes / 1e6:.0f} MB in memory"


# --------------------------------------------------------------------------- what it means


def title(temperature: float, streams: int) -> str:
    return f"temperature {temperature:g}" + (f", {streams} streams" if streams > 1 else "")


def verdict(report: Report, compared: Sequence[Comparison], mix: Mix | None) -> Iterator[str]:
    """Yield the conclusions for one temperature and number of streams."""
    if mix is not None:
        yield from _auto(mix, [each for each in compared if each.workload != HOSTILE])
        yield from _drafter_value(report, mix)
        yield from _against_peer(mix)
    yield from _looked_up(compared)
    yield from _hostile(compared)
    yield from _overhead(report, compared)
    yield from _cautions(compared)


def _auto(mix: Mix, compared: Sequence[Comparison]) -> Iterator[str]:
    auto, plain = mix.of_mode(AUTO.name), mix.of_mode("plain")
    if auto is not None and plain is not None:
        yield (
            f"auto ÷ plain: {format_ratio(auto.ratio)}; over all answers"
            f" {auto.tokens_per_s:.1f} against {plain.tokens_per_s:.1f} tokens/s"
        )
    if mix.auto_to_single_fixed is not None and mix.single_fixed is not None:
        yield (
            f"auto ÷ {mix.single_fixed.name} (the best single length for all):"
            f" {format_ratio(mix.auto_to_single_fixed)}"
        )
    if mix.auto_to_hindsight is not None:
        yield (
            "auto ÷ the better of plain and the best length of each workload, chosen by hindsight:"
            f" {format_ratio(mix.auto_to_hindsight)}{_lowest(compared)}"
        )


def _looked_up(compared: Sequence[Comparison]) -> Iterator[str]:
    autos = [figures for each in compared if (figures := each.of_mode(AUTO.name)) is not None]
    n, n_accepted = sum(f.looked_up for f in autos), sum(f.looked_up_accepted for f in autos)
    if n:
        yield (
            f"prompt lookup found {n} of the {sum(f.drafted for f in autos)} tokens that auto"
            f" drafted, and {n_accepted} of these were accepted"
        )


def _lowest(compared: Sequence[Comparison]) -> str:
    known = {c.workload: c.auto_to_hindsight.median for c in compared if c.auto_to_hindsight}
    if len(known) < 2:
        return ""
    workload = min(known, key=known.__getitem__)
    return f"; lowest in {workload}: {known[workload]:.2f}"


def _drafter_value(report: Report, mix: Mix) -> Iterator[str]:
    """Yield whether the drafter is worth its memory, unless the gain is clearly high enough."""
    memory, gain = report.engine.drafter, mix.auto_to_plain
    if memory is None or gain is None:
        return
    drafter = f"the pair is worth its memory ({memory.total_bytes / 1e6:.0f} MB)"
    if gain.high is None:
        yield (
            f"One prompt of each workload is too little data to say whether {drafter}:"
            " more --prompts tell."
        )
    elif gain.high < WORTH_IT:
        yield (
            f"auto is {gain.value:.2f} × plain on the mix, below {WORTH_IT} ×: on this machine"
            f" the pair is not worth its memory ({memory.total_bytes / 1e6:.0f} MB)."
        )
    elif gain.value < WORTH_IT:
        yield (
            f"auto is {gain.value:.2f} × plain on the mix, but other prompts might show up to"
            f" {gain.high:.2f} ×: too little data to say whether {drafter}."
        )


def _against_peer(mix: Mix) -> Iterator[str]:
    single = mix.single_peer.name if mix.single_peer is not None else ""
    rivals = (
        ("plain ÷ peer plain (fairness: the same work)", mix.plain_to_peer_plain),
        ("auto ÷ peer plain", mix.auto_to_peer_plain),
        ("auto ÷ the peer's best n_max of each workload", mix.auto_to_peer_draft),
        (f"auto ÷ {single} (the peer's best single one for all)", mix.auto_to_peer_single),
        ("auto ÷ the peer's best of each workload, plain or not", mix.auto_to_peer_best),
    )
    for words, ratio in rivals:
        if ratio is not None:
            yield f"{words}: {format_ratio(ratio)}"


def _hostile(compared: Sequence[Comparison]) -> Iterator[str]:
    for each in compared:
        if each.workload == HOSTILE and each.auto_to_plain is not None:
            yield f"with a useless drafter, auto ÷ plain: {format_range(each.auto_to_plain)}"


def _overhead(report: Report, compared: Sequence[Comparison]) -> Iterator[str]:
    known = [c.overhead_ms.median for c in compared if c.overhead_ms is not None]
    spread = MedianRange.of(known)
    if spread is not None:
        yield (
            "plain decoding spends outside of llama.cpp, per token:"
            f" {format_range(spread, 3)} ms (vocabulary of {report.engine.n_vocab} tokens)"
        )


def _cautions(compared: Sequence[Comparison]) -> Iterator[str]:
    if not any(each.modes for each in compared):
        yield "No answer was long enough to be timed."
        return
    if n_left_out := sum(each.n_left_out for each in compared):
        yield f"{n_left_out} prompts are left out: an answer ended after a few tokens."
    if any(f.n_same_text < f.n_answers for c in compared for f in c.modes if not f.mode.is_peer):
        yield (
            "Where texts differ, two tokens were all but equally likely and a wider pass rounds"
            " differently (docs/speculation.md)."
        )
    yield f"prompt tokens found in the cache: at most {max(c.max_cached for c in compared)}"


def format_range(spread: MedianRange, digits: int = 2) -> str:
    """Return `median (smallest–largest)`."""
    low, high = f"{spread.low:.{digits}f}", f"{spread.high:.{digits}f}"
    return f"{spread.median:.{digits}f} ({low}–{high})"


def format_ratio(ratio: Ratio) -> str:
    """Return `value [low–high]` with the 90 % interval, or the value alone."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} [{ratio.low:.2f}–{ratio.high:.2f}]"
