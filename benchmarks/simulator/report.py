"""Simulate all cells and situations, or read the stored figures that the page is rendered from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from benchmarks.simulator.cells import CellFigures, run_cell
from benchmarks.simulator.curves import CURVES, curve
from benchmarks.simulator.situations import SITUATIONS, SituationFigures, run_situation
from benchmarks.simulator.trace import Trace, load
from specd.errors import StoreError

FOLDER = Path(__file__).parent
TRACES = FOLDER / "traces"
FIGURES = FOLDER / "figures.json"
#: The pairs, best drafter first: file in TRACES → noise in the weights of its drafter.
NOISE = {"demo": 0.0, "demo-noise-28": 0.28, "demo-noise-38": 0.38}
DRAFTERS = tuple(NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A summary of a trace.  first_right: temperature → share of positions with a right guess."""

    drafter: str
    n_answers: int
    n_tokens: int
    first_right: tuple[tuple[float, float], ...]
    second_right: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures.  n_sessions: of each cell.  n_situation_sessions: of each situation."""

    n_sessions: int
    n_situation_sessions: int
    recorded: tuple[Recorded, ...]
    cells: tuple[CellFigures, ...]
    situations: tuple[SituationFigures, ...]


@cache
def trace(name: str) -> Trace:
    """Return a recorded trace by its name, or another one by its path.  Raises StoreError."""
    return load(TRACES / f"{name}.npz" if name in DRAFTERS else Path(name))


def simulate(
    n_sessions: int,
    n_situation_sessions: int,
    n_processes: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Report:
    """Simulate everything.  on_progress: receives the parts done and all parts."""
    places = [(d, t, c.name) for d in DRAFTERS for t in trace(d).temperatures for c in CURVES]
    cells, situations = [], []
    parts = [partial(_run_place, *place, n_sessions, n_situation_sessions) for place in places]
    for done, (cell, several) in enumerate(_run_parts(parts, n_processes), start=1):
        cells.append(cell)
        situations.append(several)
        on_progress(done, len(parts))
    return Report(
        n_sessions=n_sessions,
        n_situation_sessions=n_situation_sessions,
        recorded=tuple(_recorded(trace(name)) for name in DRAFTERS),
        cells=tuple(cells),
        situations=tuple(figures for of_one in zip(*situations, strict=True) for figures in of_one),
    )


#: A cell, and all situations with the same drafter, temperature and curve: they share baselines.
CellResult = tuple[CellFigures, Sequence[SituationFigures]]


def _run_parts(parts: Sequence[Callable[[], CellResult]], n_processes: int) -> Iterator[CellResult]:
    """Return the figures of all parts, in order."""
    if n_processes == 1:
        yield from (part() for part in parts)
        return
    with ProcessPoolExecutor(n_processes, get_context("spawn")) as pool:
        # Parts are many and take about equally long, so all processes end at about the same time.
        yield from pool.map(_call, parts)


def _call(part: Callable[[], CellResult]) -> CellResult:
    return part()


def _run_place(
    drafter: str, temperature: float, curve_name: str, n_sessions: int, n_situation_sessions: int
) -> CellResult:
    costs, recorded = curve(curve_name), trace(drafter)
    cell = run_cell(recorded, temperature, costs, n_sessions)
    return cell, [
        run_situation(name, recorded, temperature, costs, n_situation_sessions)
        for name in SITUATIONS
    ]


def _recorded(found: Trace) -> Recorded:
    return Recorded(
        drafter=found.name,
        n_answers=len(found.answers),
        n_tokens=sum(len(answer.tokens) for answer in found.answers),
        first_right=tuple((t, round(found.first_right(t), 4)) for t in found.temperatures),
        second_right=tuple((t, round(found.second_right(t), 4)) for t in found.temperatures),
    )


def write(report: Report, path: Path = FIGURES) -> None:
    """Store the figures with one digit more than the page shows."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded(report)), indent=1) + b"\n")


def read(path: Path = FIGURES) -> Report:
    """Return the stored figures.  Raises StoreError for a file without figures of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} holds no figures of the simulator: {error}") from error


def rounded(report: Report) -> Report:
    """Return the value with four decimals; further decimals differ between processors."""
    return msgspec.convert(_rounded(msgspec.to_builtins(report)), Report)


def _rounded(value: object) -> object:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
        case _:
            return value
