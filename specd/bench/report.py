"""A bench as a table, as Markdown, as JSON, and in sentences.  Every figure was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.table import Table

from specd import core
from specd.bench.comparison import Comparison, ModeFigures, Spread
from specd.bench.machine import Machine
from specd.bench.runs import Run
from specd.bench.subject import Subject
from specd.bench.workload import AUTO
from specd.store.facts import GgufFacts

#: Below this gain the drafter's memory is better spent on the target.
WORTH_IT = 1.3
#: The layout of the JSON file; raised when a reader would have to change.
JSON_FORMAT = 1

_HEADERS = ("mode", "tokens/s", "÷ plain", "accepted / drafted", "mean draft", "same text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """began, ended: with their time zone.  facts: the target's header."""

    subject: Subject
    spec: core.EngineSpec
    engine: core.EngineFacts
    facts: GgufFacts
    machine: Machine
    workload: str
    n_prompts: int
    n_tokens: int
    began: datetime
    ended: datetime
    load_average_after: float
    runs: Sequence[Run]
    comparisons: Sequence[Comparison]


# --------------------------------------------------------------------------- sentences


def heading(report: Report) -> Iterator[str]:
    """What was measured, where, and with what."""
    machine, spec = report.machine, report.spec
    accelerators = ", ".join(machine.accelerators) or "no accelerator"
    load = f"{machine.load_average:.1f} before, {report.load_average_after:.1f} after"
    yield _target_words(report)
    yield _drafter_words(report)
    yield (
        f"Machine: {machine.cpu}, {spec.n_threads} threads, {accelerators},"
        f" KV cache {spec.kv_cache_type}; load average {load}"
    )
    yield (
        f"Versions: specd {machine.specd}, llama-cpp-python {machine.llama_cpp_python},"
        f" Python {machine.python}; {report.began:%Y-%m-%d %H:%M %Z}"
    )
    yield (
        f"Workload: {report.n_prompts} prompts ({report.workload}), at most {report.n_tokens}"
        " tokens each, one at a time; median (smallest – largest) over the prompts"
    )


def _target_words(report: Report) -> str:
    facts = report.facts
    size = f"{facts.n_parameters / 1e6:.0f} M parameters"
    words = (
        f"Target: {report.subject.name}, {size}{', ' + facts.file_type if facts.file_type else ''}"
    )
    if report.subject.padded:
        words += " (synthetic target: a small model padded to this size; it says what the small"
        words += " one says and takes the time of a model of this size)"
    return words


def _drafter_words(report: Report) -> str:
    memory = report.engine.drafter
    if memory is None:
        reason = report.engine.no_pair_detail or "none was asked for"
        return f"Drafter: none ({reason})"
    return f"Drafter: {report.subject.drafter_name}, {memory.total_bytes / 1e6:.0f} MB in memory"


def verdict(report: Report, comparison: Comparison) -> Iterator[str]:
    """What the table of one temperature means."""
    auto = comparison.of_mode(AUTO.name)
    if comparison.auto_to_best is not None:
        best, spread = comparison.best, comparison.auto_to_best
        yield f"auto ÷ {best} (the best of the others): {_words(spread)}"
    if comparison.auto_to_hindsight is not None:
        yield (
            "auto ÷ the fastest other mode of each prompt, chosen by hindsight:"
            f" {_words(comparison.auto_to_hindsight)}"
        )
    if auto is not None and auto.ratio.median < WORTH_IT:
        memory = report.engine.drafter
        size = f" ({memory.total_bytes / 1e6:.0f} MB)" if memory is not None else ""
        yield (
            f"auto is {auto.ratio.median:.2f} × plain, below {WORTH_IT} ×:"
            f" on this machine the pair is not worth its memory{size}."
        )
    if comparison.overhead_ms is not None:
        yield (
            "plain decoding spends outside of llama.cpp, per token:"
            f" {_words(comparison.overhead_ms, 3)} ms"
            f" (vocabulary of {report.engine.n_vocab} tokens)"
        )
    yield from _cautions(comparison)


def _cautions(comparison: Comparison) -> Iterator[str]:
    if not comparison.modes:
        yield "No answer was long enough to be timed."
    if comparison.n_left_out:
        yield f"{comparison.n_left_out} prompts are left out: an answer ended after a few tokens."
    if any(figures.n_same_text < figures.n_prompts for figures in comparison.modes):
        yield (
            "Where texts differ, two tokens were all but equally likely and a wider pass rounds"
            " differently (docs/speculation.md)."
        )
    if comparison.modes:
        yield f"prompt tokens found in the cache: at most {comparison.max_cached}"


def _words(spread: Spread, digits: int = 2) -> str:
    low, high = f"{spread.low:.{digits}f}", f"{spread.high:.{digits}f}"
    return f"{spread.median:.{digits}f} ({low} – {high})"


# --------------------------------------------------------------------------- tables


def title(comparison: Comparison) -> str:
    return f"temperature {comparison.temperature:g}"


def _cells(figures: ModeFigures) -> tuple[str, ...]:
    share = f" ({figures.accepted / figures.drafted:.0%})" if figures.drafted else ""
    return (
        figures.mode,
        _words(figures.tokens_per_s, 1),
        _words(figures.ratio),
        f"{figures.accepted} / {figures.drafted}{share}",
        f"{figures.mean_draft_length:.1f}",
        f"{figures.n_same_text} of {figures.n_prompts}",
    )


def table(comparison: Comparison) -> Table:
    made = Table(title=title(comparison), title_justify="left")
    for header in _HEADERS:
        made.add_column(header, justify="left" if header == "mode" else "right", no_wrap=True)
    for figures in comparison.modes:
        style = "bold" if figures.mode in {AUTO.name, comparison.best} else ""
        made.add_row(*_cells(figures), style=style)
    return made


def markdown(report: Report) -> str:
    lines = [f"- {line}" for line in heading(report)]
    for comparison in report.comparisons:
        lines += ["", f"### {title(comparison).capitalize()}", ""]
        lines += [_markdown_row(_HEADERS), "|---|" + "---:|" * (len(_HEADERS) - 1)]
        lines += [_markdown_row(_cells(figures)) for figures in comparison.modes]
        lines += ["", *(f"- {sentence}" for sentence in verdict(report, comparison))]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --------------------------------------------------------------------------- for machines


def to_json(report: Report) -> Mapping[str, Any]:
    """Everything, down to the single run; times are the engine's, in nanoseconds."""
    return {
        "format": JSON_FORMAT,
        "began": report.began.isoformat(),
        "ended": report.ended.isoformat(),
        "load_average_after": report.load_average_after,
        "machine": asdict(report.machine),
        "subject": {
            "name": report.subject.name,
            "synthetic": report.subject.padded,
            "target": report.subject.target.name,
            "n_parameters": report.facts.n_parameters,
            "file_type": report.facts.file_type,
            "drafter": report.subject.drafter_name,
        },
        "engine": asdict(report.engine),
        "spec": {
            key: value
            for key, value in asdict(report.spec).items()
            if key not in {"weights", "drafter"}  # paths of one machine
        },
        "workload": {
            "name": report.workload,
            "n_prompts": report.n_prompts,
            "n_tokens": report.n_tokens,
        },
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "runs": [asdict(run) | {"tokens_per_s": run.tokens_per_s} for run in report.runs],
    }
