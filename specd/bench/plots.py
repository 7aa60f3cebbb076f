"""Plots of a bench: speed by draft length, acceptance by depth, cost by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import specd
from specd.bench.comparison import Comparison, ModeFigures
from specd.bench.mix import Mix
from specd.bench.mode import AUTO, Kind
from specd.bench.report import Report
from specd.bench.runs import sum_depths
from specd.bench.summary import title
from specd.bench.workload import HOSTILE
from specd.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (7.2, 4.3)
_OURS, _PEERS, _REFERENCE = "#1f6feb", "#c2570c", "#57606a"
#: Colours and styles of the workloads' lines; no two lines share both.  They differ from the strong
#: lines' colours and can be told apart by the colour-blind.
_COLOURS = ("#7b4ea3", "#2a9d8f", "#b5a400", "#d1495b", "#6b7280")
_STYLES = ("-", "--")

Points = Sequence[tuple[int, float]]


def need_matplotlib() -> None:
    """Raise InvalidRequest, which says what to install, where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise InvalidRequest(f"plots need matplotlib: pip install '{specd.DISTRIBUTION}[bench]'")


def draw_plots(report: Report, folder: Path) -> dict[str, str]:
    """Write the SVGs to the folder and return caption → file name."""
    written = {}
    for caption, name, draw in plots_of(report):
        figure, axes = new_axes()
        draw(axes)
        axes.set_title(caption, loc="left", fontsize=11)
        # No date and no random ids: equal figures give equal files.
        figure.savefig(folder / name, format="svg", metadata={"Date": None})
        written[caption] = name
    return written


def new_axes() -> tuple[Figure, Axes]:
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "specd"
    mpl.rcParams["svg.fonttype"] = "none"  # letters as text: half the size
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def plots_of(report: Report) -> Iterator[tuple[str, str, Callable[[Axes], None]]]:
    for temperature, streams, compared, mix in report.parts():
        name, where = f"t{temperature:g}-s{streams}", title(temperature, streams)
        known = [each for each in compared if each.modes and each.workload != HOSTILE]
        if any(each.best_fixed is not None for each in known):
            yield (
                f"Speed by draft length, {where}",
                f"speed-{name}.svg",
                partial(_speed, known, mix),
            )
        if any(map(_longest_drafts, known)):
            draw = partial(_acceptance, known)
            yield f"Acceptance by depth, {where}", f"acceptance-{name}.svg", draw
    if len(report.engine.costs.target_s) > 1:
        yield "Cost of a target pass by its rows", "cost.svg", partial(_cost, report)


# --------------------------------------------------------------------------- the three


def _speed(compared: Sequence[Comparison], mix: Mix | None, axes: Axes) -> None:
    """Draw a thin line per workload and strong ones for the mix, auto and the peer."""
    ours, peers = {Kind.PLAIN, Kind.FIXED}, {Kind.PEER_PLAIN, Kind.PEER_DRAFT}
    faint = {
        each.workload: [(f.mode.n_draft, f.ratio.median) for f in each.modes if f.mode.kind in ours]
        for each in compared
    }
    if mix is not None:
        for kinds, colour, words in ((ours, _OURS, "fixed"), (peers, _PEERS, "peer's n_max")):
            points = [(f.mode.n_draft, f.ratio.value) for f in mix.modes if f.mode.kind in kinds]
            _strong(axes, points, f"{words}, all", colour)
        if (auto := mix.of_mode(AUTO.name)) is not None:
            axes.axhline(auto.ratio.value, color=_OURS, linestyle="--", label="auto, all")
    axes.axhline(1.0, color=_REFERENCE, linewidth=0.8)
    axes.set_xlabel("drafted tokens per pass (0: plain decoding)")
    axes.set_ylabel("speed ÷ plain")
    _finish(axes, faint)


def _acceptance(compared: Sequence[Comparison], axes: Axes) -> None:
    """Draw the accepted share of the tokens drafted at each depth."""
    known = {each.workload: figures for each in compared if (figures := _longest_drafts(each))}
    faint = {
        workload: _shares(figures.drafted_per_depth, figures.accepted_per_depth)
        for workload, figures in known.items()
    }
    together = _shares(
        sum_depths([figures.drafted_per_depth for figures in known.values()]),
        sum_depths([figures.accepted_per_depth for figures in known.values()]),
    )
    _strong(axes, together, "all", _OURS)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("accepted ÷ drafted")
    _finish(axes, faint, top=1.0)


def _longest_drafts(each: Comparison) -> ModeFigures | None:
    """Return the mode with the longest drafts, a fixed one where one ran; None without drafts."""
    fixed = [f for f in each.modes if f.mode.kind is Kind.FIXED]
    drafting = [f for f in fixed or each.modes if f.drafted_per_depth]
    return max(drafting, key=lambda f: len(f.drafted_per_depth), default=None)


def _shares(drafted: Sequence[int], accepted: Sequence[int]) -> list[tuple[int, float]]:
    both = zip(drafted, accepted, strict=True)
    return [(depth, kept / n) for depth, (n, kept) in enumerate(both, 1) if n]


def _cost(report: Report, axes: Axes) -> None:
    costs = report.engine.costs
    points = [(width, seconds * 1e3) for width, seconds in costs.target_s]
    _strong(axes, points, "target pass", _OURS)
    if costs.draft_step_s:
        words = "one drafted token"
        axes.axhline(costs.draft_step_s * 1e3, color=_PEERS, linestyle="--", label=words)
    axes.set_xlabel("rows of the pass")
    axes.set_ylabel("milliseconds")
    _finish(axes, {})


# --------------------------------------------------------------------------- lines


def _strong(axes: Axes, points: Points, words: str, colour: str) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, linewidth=2.2, marker="o", markersize=5, label=words)


def _finish(axes: Axes, faint: Mapping[str, Points], top: float | None = None) -> None:
    """Draw thin lines; set integer ticks, an axis from 0, and a legend beside the plot."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    for n, (words, points) in enumerate(faint.items()):
        x, y = zip(*points, strict=True)
        colour = _COLOURS[n % len(_COLOURS)]
        style = _STYLES[n // len(_COLOURS) % len(_STYLES)]
        axes.plot(x, y, color=colour, linestyle=style, linewidth=1.2, label=words)
    axes.set_ylim(0, top)
    # Tokens and rows are whole.
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
