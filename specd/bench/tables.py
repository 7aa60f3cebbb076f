"""The tables of a bench, for terminals and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from specd.bench.comparison import Comparison, ModeFigures
from specd.bench.mix import Mix, Ratio
from specd.bench.mode import AUTO, PLAIN, Mode
from specd.bench.report import Report
from specd.bench.runs import MedianRange
from specd.bench.summary import format_range, format_ratio, heading, verdict
from specd.bench.summary import title as part_title

_DETAILS = ("mode", "tokens/s", "÷ plain", "accepted", "mean\ndraft", "same\ntext")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of figures whose first column is text.

    headers, rows: of one length.  bold: indexes of the rows that matter most.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[int] = frozenset()

    def rich(self) -> RichTable:
        made = RichTable(
            title=self.title,
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for i, header in enumerate(self.headers):
            justify: Literal["left", "right"] = "right" if i else "left"
            made.add_column(header.strip(), justify=justify, no_wrap=True, vertical="bottom")
        for i, row in enumerate(self.rows):
            made.add_row(*row, style="bold" if i in self.bold else "")
        return made

    def markdown(self) -> list[str]:
        lines = [self.headers, ("---", *["---:"] * (len(self.headers) - 1)), *self.rows]
        return [
            f"| {' | '.join(cell.replace(chr(10), ' ').strip() for cell in line)} |"
            for line in lines
        ]


def overview(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Table:
    """Return a row per workload: plain tokens/s, and specd's other modes as multiples of it."""
    modes = [mode for mode in _modes(compared) if not mode.is_peer and mode != PLAIN]
    headers = ["workload", "plain\ntokens/s", *(mode.name for mode in modes)]
    headers += ["auto ÷\nbest", "auto\naccepts", "same\ntext"]
    rows = [
        (
            each.workload,
            *(f"{f.tokens_per_s.median:.1f}" for f in each.modes if f.mode == PLAIN),
            *_ratios(each, modes),
            _figure(each.auto_to_hindsight),
            _share(each.of_mode(AUTO.name)),
            _same([each]),
        )
        for each in compared
        if each.modes
    ]
    n_workloads = len(rows)
    if mix is not None and len(mix.workloads) > 1:
        plain = [f"{f.tokens_per_s:.1f}" for f in mix.modes if f.mode == PLAIN]
        mixed = [each for each in compared if each.workload in mix.workloads]
        missed = _figure(mix.auto_to_hindsight)
        rows.append(("mix", *plain, *_ratios(mix, modes), missed, "", _same(mixed)))
    return Table(title, tuple(headers), tuple(rows), frozenset({n_workloads}))


def peer_overview(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Table | None:
    """Return a row per workload: the peer's modes over specd's plain, and auto over the peer's.

    None where no peer ran.
    """
    modes = [mode for mode in _modes(compared) if mode.is_peer]
    if not modes:
        return None
    headers = [
        "workload",
        *(mode.name.removeprefix("peer ").replace(" =", "\n=") for mode in modes),
    ]
    headers += ["auto ÷\nplain", "auto ÷\nn_max", "auto ÷\nbest"]
    parts: list[Comparison | Mix] = [each for each in compared if each.auto_to_peer_plain]
    if mix is not None and len(mix.workloads) > 1:
        parts.append(mix)
    rows = [
        (
            "mix" if isinstance(each, Mix) else each.workload,
            *_ratios(each, modes),
            _figure(each.auto_to_peer_plain),
            _figure(each.auto_to_peer_draft),
            _figure(each.auto_to_peer_best),
        )
        for each in parts
    ]
    bold = frozenset(i for i, each in enumerate(parts) if isinstance(each, Mix))
    return Table(f"{title}, the peer (÷ plain here)", tuple(headers), tuple(rows), bold)


def _modes(compared: Sequence[Comparison]) -> list[Mode]:
    found = {figures.mode for each in compared for figures in each.modes}
    return sorted(found, key=lambda mode: mode.sort_key)


def _ratios(part: Comparison | Mix, modes: Sequence[Mode]) -> list[str]:
    """Return the ratio to plain of each mode, "" where a mode did not run."""
    known = {figures.mode: figures.ratio for figures in part.modes}
    return [_figure(known.get(mode)) for mode in modes]


def _figure(ratio: MedianRange | Ratio | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.median if isinstance(ratio, MedianRange) else ratio.value:.2f}"


def _share(figures: ModeFigures | None) -> str:
    if figures is None or not figures.drafted:
        return "–"
    return f"{figures.accepted / figures.drafted:.0%}"


def _same(compared: Sequence[Comparison]) -> str:
    """Return the count of specd's answers with plain's text; a peer has other random numbers."""
    ours = [f for each in compared for f in each.modes if not f.mode.is_peer and f.mode != PLAIN]
    return f"{sum(f.n_same_text for f in ours)}/{sum(f.n_answers for f in ours)}"


def details(title: str, comparison: Comparison) -> Table:
    """Return a row per mode, with ranges."""
    best = {AUTO, comparison.hindsight}
    bold = {i for i, figures in enumerate(comparison.modes) if figures.mode in best}
    rows = tuple(map(_cells, comparison.modes))
    return Table(title, _DETAILS, rows, frozenset(bold))


def _cells(figures: ModeFigures) -> tuple[str, ...]:
    share = f"{_share(figures)} of {figures.drafted}" if figures.drafted else "–"
    return (
        figures.mode.name,
        format_range(figures.tokens_per_s, 1),
        format_range(figures.ratio),
        share,
        f"{figures.mean_draft_length:.1f}" if figures.mean_draft_length else "–",
        f"{figures.n_same_text}/{figures.n_answers}",
    )


def mixed(title: str, mix: Mix) -> Table:
    """Return a row per mode over all workloads, with 90 % intervals."""
    rows = tuple(
        (each.mode.name, f"{each.tokens_per_s:.1f}", format_ratio(each.ratio)) for each in mix.modes
    )
    best = {AUTO, mix.single_fixed}
    bold = frozenset(i for i, each in enumerate(mix.modes) if each.mode in best)
    return Table(title, ("mode", "tokens/s", "÷ plain"), rows, bold)


def overviews(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Iterator[Table]:
    """Yield the overviews of specd and the peer; none for a single workload."""
    if len(compared) > 1:
        yield overview(title, compared, mix)
        if (peers := peer_overview(title, compared, mix)) is not None:
            yield peers


def all_tables(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Iterator[Table]:
    """Yield the overviews, the mix and a table per workload."""
    yield from overviews(title, compared, mix)
    if mix is not None and len(mix.workloads) > 1:
        yield mixed(f"{title}, all workloads", mix)
    for each in compared:
        if each.modes:
            yield details(f"{title}, {each.workload}", each)


def markdown_document(report: Report, plots: Mapping[str, str] | None = None) -> str:
    """Return the bench as a Markdown document.  plots: caption → file beside the document."""
    lines = [f"- {line}" for line in heading(report)]
    for temperature, streams, compared, mix in report.parts():
        name = part_title(temperature, streams)
        lines += ["", f"### {name.capitalize()}", ""]
        lines += [f"- {sentence}" for sentence in verdict(report, compared, mix)]
        for table in all_tables(name, compared, mix):
            lines += ["", f"{table.title.capitalize()}:", "", *table.markdown()]
    for caption, file in (plots or {}).items():
        lines += ["", f"![{caption}]({file})"]
    return "\n".join(lines) + "\n"
