"""A bench as tables: the workloads side by side, and each with all its modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from specd.bench.comparison import Comparison, ModeFigures
from specd.bench.mix import Mix
from specd.bench.mode import AUTO, PLAIN, Kind, Mode
from specd.bench.words import of_ratio, of_spread

_DETAILS = ("mode", "tokens/s", "÷ plain", "accepted / drafted", "mean draft", "same text")


@dataclass(frozen=True, slots=True)
class Table:
    """headers and rows of one length; the first column is words, the others are figures.

    bold: numbers of the rows that matter most.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[int] = frozenset()

    def rich(self) -> RichTable:
        made = RichTable(title=self.title, title_justify="left")
        for i, header in enumerate(self.headers):
            made.add_column(header, justify="right" if i else "left", no_wrap=True)
        for i, row in enumerate(self.rows):
            made.add_row(*row, style="bold" if i in self.bold else "")
        return made

    def markdown(self) -> list[str]:
        lines = [self.headers, ("---", *["---:"] * (len(self.headers) - 1)), *self.rows]
        return [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |" for line in lines]


def overview(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Table:
    """A row per workload: plain tokens/s, the other modes as multiples of it, what auto missed."""
    modes = sorted(
        {figures.mode for each in compared for figures in each.modes} - {PLAIN},
        key=lambda mode: mode.place,
    )
    has_hindsight = any(mode.kind is Kind.FIXED for mode in modes)
    headers = ["workload", "plain\ntokens/s", *(_header(mode) for mode in modes)]
    headers += ["auto ÷\nhindsight"] * has_hindsight + ["auto\naccepted", "same\ntext"]
    rows = [_workload(each, modes, has_hindsight=has_hindsight) for each in compared]
    if mix is not None and len(mix.workloads) > 1:
        rows.append(_mix(mix, compared, modes, has_hindsight=has_hindsight))
    return Table(title, tuple(headers), tuple(rows), frozenset({len(compared)}))


def _header(mode: Mode) -> str:
    # The peer's names are long: in two lines.
    return mode.name.replace("peer ", "peer\n") if mode.is_peer else f"\n{mode.name}"


def _workload(each: Comparison, modes: Sequence[Mode], *, has_hindsight: bool) -> tuple[str, ...]:
    by_mode = {figures.mode: figures for figures in each.modes}
    plain, auto = by_mode.get(PLAIN), by_mode.get(AUTO)
    cells = [each.workload, f"{plain.tokens_per_s.median:.1f}" if plain is not None else ""]
    cells += [f"{by_mode[mode].ratio.median:.2f}" if mode in by_mode else "" for mode in modes]
    if has_hindsight:
        missed = each.auto_to_hindsight
        cells.append(f"{missed.median:.2f}" if missed is not None else "")
    return *cells, _share(auto), _same([each])


def _mix(
    mix: Mix, compared: Sequence[Comparison], modes: Sequence[Mode], *, has_hindsight: bool
) -> tuple[str, ...]:
    by_mode = {figures.mode: figures for figures in mix.modes}
    cells = ["mix", f"{by_mode[PLAIN].tokens_per_s:.1f}"]
    cells += [f"{by_mode[mode].ratio.value:.2f}" if mode in by_mode else "" for mode in modes]
    if has_hindsight:
        missed = mix.auto_to_hindsight
        cells.append(f"{missed.value:.2f}" if missed is not None else "")
    mixed = [each for each in compared if each.workload in mix.workloads]
    return *cells, "", _same(mixed)


def _share(figures: ModeFigures | None) -> str:
    if figures is None or not figures.drafted:
        return "–"
    return f"{figures.accepted / figures.drafted:.0%}"


def _same(compared: Sequence[Comparison]) -> str:
    """Our own answers that are plain's; a peer draws with other random numbers."""
    ours = [f for each in compared for f in each.modes if not f.mode.is_peer and f.mode != PLAIN]
    return f"{sum(f.n_same_text for f in ours)} of {sum(f.n_prompts for f in ours)}"


def details(title: str, comparison: Comparison) -> Table:
    """A row per mode, with spreads."""
    best = {AUTO, comparison.hindsight}
    bold = {i for i, figures in enumerate(comparison.modes) if figures.mode in best}
    rows = tuple(map(_cells, comparison.modes))
    return Table(title, _DETAILS, rows, frozenset(bold))


def _cells(figures: ModeFigures) -> tuple[str, ...]:
    share = f" ({figures.accepted / figures.drafted:.0%})" if figures.drafted else ""
    return (
        figures.mode.name,
        of_spread(figures.tokens_per_s, 1),
        of_spread(figures.ratio),
        f"{figures.accepted} / {figures.drafted}{share}",
        f"{figures.mean_draft_length:.1f}" if figures.mean_draft_length else "–",
        f"{figures.n_same_text} of {figures.n_prompts}",
    )


def mixed(title: str, mix: Mix) -> Table:
    """A row per mode over all workloads, with the interval that a repetition should fall into."""
    rows = tuple(
        (each.mode.name, f"{each.tokens_per_s:.1f}", of_ratio(each.ratio)) for each in mix.modes
    )
    best = {AUTO, mix.single_fixed}
    bold = frozenset(i for i, each in enumerate(mix.modes) if each.mode in best)
    return Table(title, ("mode", "tokens/s", "÷ plain"), rows, bold)


def all_tables(title: str, compared: Sequence[Comparison], mix: Mix | None) -> Iterator[Table]:
    """The overview where there are several workloads, and then every workload's own."""
    if len(compared) > 1:
        yield overview(title, compared, mix)
        if mix is not None:
            yield mixed(f"{title}, all workloads", mix)
    for each in compared:
        if each.modes:
            yield details(f"{title}, {each.workload}", each)
