"""Format the rows of `specd pairs`.

A terminal gets a row of names with indented sentences below it, which fit no column.  A pipe gets
a table with one header and one line per model.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console

from specd.cli.formatting import columns, print_lines, table_lines
from specd.core import TEMPERATURE_BANDS, BandHistory, Pair, SkippedDrafter
from specd.pairs import HistoryEntry

_HEADERS: Final = ("MODEL", "DRAFTER", "CHOSEN BY", "RULE")
_SENTENCES: Final = "GAIN HERE, OR WHY NONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model with its drafter, or the reason why it has none.

    pair None: `problem` says what is wrong with the model.  learned None: no history here yet.
    draft_length: the first and the longest draft length of the rule that chose the drafter.
    """

    model: str
    pair: Pair | None = None
    problem: str = ""
    learned: HistoryEntry | None = None
    draft_length: tuple[int, int] | None = None


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    if not console.is_terminal:
        cells = [(*_names(row), "; ".join(sentences(row))) for row in rows]
        print_lines(console, table_lines([(*_HEADERS, _SENTENCES), *cells], console.width))
        return
    lines = columns([_HEADERS, *map(_names, rows)], gap=2)
    if max(map(cell_len, lines)) > console.width:
        lines = ["MODEL", *(row.model for row in rows)]
        below = [[*_names_in_rows(row), *sentences(row)] for row in rows]
    else:
        below = [sentences(row) for row in rows]
    for line, parts in zip(lines, [[], *below], strict=True):
        console.print(line, markup=False, soft_wrap=True)
        for part in parts:
            for piece in wrap_line(part, console.width):
                console.print(piece, style="dim", markup=False, soft_wrap=True)


def sentences(row: Row) -> list[str]:
    """Return the drafter's gain here by temperature band, or why there is no drafter.

    Each other drafter that lost here has a line, which says when it is tried again.
    """
    if row.pair is None:
        return [row.problem]
    gains = [_gain(band) for band in has_history(row.learned)] if row.learned is not None else []
    lost = [one.detail for one in row.pair.skipped_drafters]
    if row.pair.drafter is not None:
        unknown = "not used yet" if row.learned is None else "nothing measured yet"
        return [*(gains or [unknown]), *lost]
    why = row.pair.detail or (row.pair.reason.value if row.pair.reason else "")
    return [*gains, *filter(None, dict.fromkeys([why, *lost]))]


def has_history(learned: HistoryEntry) -> list[BandHistory]:
    return [
        band
        for band in learned.history.bands
        if band.gain is not None and band.n_drafted and band.band < len(TEMPERATURE_BANDS)
    ]


def to_json(row: Row) -> dict[str, Any]:
    """Return the row as JSON; `gained` is null without history."""
    if row.pair is None:
        return {"model": row.model, "error": row.problem}
    drafter, learned = row.pair.drafter, row.learned
    return {
        "model": row.model,
        "drafter": drafter.name if drafter else None,
        "pair_source": drafter.source if drafter else None,
        "rule": row.pair.rule or None,
        "expected": dict(row.pair.expected),
        "draft_length": list(row.draft_length) if row.draft_length else None,
        "reason": row.pair.reason,
        "detail": row.pair.detail,
        "pull": list(row.pair.pull),
        "passed_over": [_rejected_drafters(one) for one in row.pair.skipped_drafters],
        "gained": _gain_by_band(learned) if learned is not None else None,
    }


def _names(row: Row) -> tuple[str, str, str, str]:
    drafter = row.pair.drafter if row.pair is not None else None
    rule = (row.pair.rule if row.pair is not None else "") or "-"
    name, source = (drafter.name, drafter.source) if drafter is not None else ("-", "-")
    return row.model, name, source, rule


def _names_in_rows(row: Row) -> Iterator[str]:
    """Yield the sentences for names that are too long for columns, without the model."""
    _, drafter, source, rule = _names(row)
    if drafter != "-":
        yield f"drafter: {drafter} ({source})"
    if rule != "-":
        yield f"rule: {rule}"


def _gain(band: BandHistory) -> str:
    who = "prompt lookup " if band.drafter == "lookup" else ""
    accepted = f"{_rate(band):.0%} of {band.n_drafted} tokens accepted"
    parked = f", resting for now: {band.parked}" if band.parked else ""
    return (
        f"{who}{band.gain:.2f}× at temperature {TEMPERATURE_BANDS[band.band]} ({accepted}{parked})"
    )


def _rate(band: BandHistory) -> float:
    return min(band.n_accepted / band.n_drafted, 1.0)


def _rejected_drafters(lost: SkippedDrafter) -> dict[str, Any]:
    return {
        "drafter": lost.name,
        "gain": lost.gain,
        "n_requests": lost.n_requests,
        "draft_n": lost.n_drafted,
        "draft_n_accepted": lost.n_accepted,
        "tried_again_after_answers": lost.n_answers_left,
        "n_retries": lost.n_retries,
    }


def _gain_by_band(learned: HistoryEntry) -> dict[str, Any]:
    key, history = learned.key, learned.history
    return {
        "machine": key.machine,
        "device": history.device,
        "n_threads": key.n_threads,
        "kv_cache_type": key.kv_cache_type,
        "used_at": learned.used_at,
        "bands": [
            {
                "drafter": band.drafter,
                "temperature": TEMPERATURE_BANDS[band.band],
                "gain": band.gain,
                "acceptance_rate": _rate(band),
                "n_requests": band.n_requests,
                "draft_n": band.n_drafted,
                "draft_n_accepted": band.n_accepted,
                "parked": band.parked,
            }
            for band in has_history(learned)
        ],
        "target_s": dict(history.target_s),
    }


def wrap_line(line: str, width: int, first: str = "  ", others: str = "    ") -> list[str]:
    return textwrap.wrap(
        line,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
