"""Implement `specd pairs show`: list each model's drafter, its rule and its gain.

A model without a drafter gets the reason.  The command reads the store, the rules and the history
itself, so it needs no daemon and loads no model.

A terminal gets a row of names with indented sentences below it, which fit no column.  A pipe gets
a table with one header and one line per model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console

from specd.cli.formatting import (
    columns,
    make_console,
    print_lines,
    print_with_details,
    table_lines,
)
from specd.cli.pairs_suggest import mute_store_log
from specd.core import TEMPERATURE_BANDS, BandHistory, LocalModel, Pair, SkippedDrafter
from specd.errors import InvalidRequest, SpecdError, StoreError
from specd.pairs import (
    HISTORY_FILE,
    History,
    HistoryEntry,
    Pairs,
    RuleBook,
    Vocabularies,
    file_identities,
    file_identity,
    load_rules,
)
from specd.pairs.finder import LOCAL_STORE
from specd.pairs.rules import has_wildcards, matches
from specd.placement import Device, Devices, machine_name
from specd.runner import probe
from specd.settings import Settings
from specd.store import Library

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


def show(model: str, *, as_json: bool, forget: bool) -> None:
    """Print one row per model that matches `model`; all models if it is empty."""
    settings = Settings()
    history = History(settings.state_dir / HISTORY_FILE if settings.state_dir else None)
    known = Vocabularies.in_state_dir(history)
    library = Library(
        settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
    )
    console = make_console()
    is_one = bool(model) and not has_wildcards(model)
    names = [model] if is_one else _names_like(model or "*", library)
    if forget:
        _forget(history, [library.resolve(name) for name in names] if model else None, console)
        return
    rules = load_rules(settings.pairs_file)
    entries = history.entries()

    @functools.cache
    def devices() -> list[Device]:
        """Return the devices; called only when needed, because it takes a second."""
        return list(Devices(probe(), igpu=settings.igpu)())

    here = machine_name(devices()) if entries else ""
    on = settings.speculative_decode
    finder = Pairs(
        library,
        rules,
        enabled=on,
        history=history,
        machine=here,
        vocabularies=known,
        on_gpu=lambda: bool(devices()),
    )
    learned = functools.partial(_last_entry, entries=entries, machine=here)
    with mute_store_log():
        rows = [_row(name, library, finder, rules, learned, only=is_one) for name in names]
    if as_json:
        typer.echo(json.dumps([to_json(row) for row in rows], indent=2, ensure_ascii=False))
        return
    print_rows(console, rows)
    console.print(f"\nmodels: {settings.models}", style="dim")


def _names_like(pattern: str, library: Library) -> list[str]:
    """Return the matching names; no match raises InvalidRequest, except without a pattern."""
    names = sorted(name.short for name in library.names())
    found = [name for name in names if matches(pattern, name)]
    if not found and pattern != "*":
        raise InvalidRequest(f"no model on disk matches {pattern}")
    return found


def _row(
    name: str,
    library: Library,
    finder: Pairs,
    rules: RuleBook,
    learned: Callable[[Pair], HistoryEntry | None],
    *,
    only: bool,
) -> Row:
    """Return the model's row; a problem becomes part of it, or is raised if `only`."""
    try:
        pair = finder.pair(library.resolve(name))
    except SpecdError as error:
        if only:
            raise
        return Row(model=name, problem=str(error))
    by_rule = pair.rule and (pair.drafter is None or pair.drafter.source != LOCAL_STORE)
    rule = rules.rule_for(pair.target.name) if by_rule else None
    return Row(
        model=pair.target.name,
        pair=pair,
        learned=learned(pair),
        draft_length=rule.draft_length if rule is not None else None,
    )


def _last_entry(pair: Pair, entries: Sequence[HistoryEntry], machine: str) -> HistoryEntry | None:
    """Return the pair's last entry on this machine; gains depend on caches and threads.

    entries: the last used first.
    """
    if not isinstance(pair.target, LocalModel):
        return None
    try:
        target = file_identity(pair.target.weights)
        drafter = file_identity(pair.drafter.weights) if pair.drafter else ""
        adapters = file_identities(pair.target.adapters)
    except OSError:
        return None
    wanted = target, adapters, drafter, machine
    keys = ((one, one.key) for one in entries)
    found = (one for one, k in keys if (k.target, k.adapters, k.drafter, k.machine) == wanted)
    return next(found, None)


def _forget(history: History, models: Sequence[LocalModel] | None, console: Console) -> None:
    """Delete the history of these models; without models all of it, also of removed models."""
    try:
        targets = {file_identity(model.weights) for model in models or ()}
        n = history.forget(lambda key: models is None or key.target in targets)
    except OSError as error:
        raise StoreError(f"cannot change the history: {error}") from error
    console.print(f"forgot {n} pair{'' if n == 1 else 's'}")


# --------------------------------------------------------------------------- output


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
    print_with_details(console, lines, below)


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
    who = "prompt lookup " if band.drafter == "lookup" else "draft model "
    accepted = f"{_rate(band):.0%} of {band.n_drafted} tokens accepted"
    parked = f", parked: {band.parked}" if band.parked else ""
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
