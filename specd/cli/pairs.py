"""`specd pairs`: which drafter serves which model, by which rule, what it gained here, and why some
have none.

Read from the store, the rules and the history themselves, so that it needs no daemon and loads no
model.  The commands below it: pairs_edit.py (add, refuse, remove) and pairs_suggest.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from specd.cli import pairs_edit, pairs_suggest
from specd.cli.words import make_console
from specd.core import TEMPERATURE_BANDS, BandHistory, ModelRef, Pair
from specd.errors import SpecdError, StoreError
from specd.pairs import (
    HISTORY_FILE,
    Entry,
    History,
    Pairs,
    RuleBook,
    Vocabularies,
    identities_of,
    identity_of,
    load_rules,
)
from specd.placement import Devices, machine_name
from specd.runner import probe
from specd.settings import Settings
from specd.store import Library

#: Each column with the width that it is folded to where the terminal is narrow; the last one takes
#: what is left.
_COLUMNS: Final = (
    ("MODEL", 20),
    ("DRAFTER", 16),
    ("CHOSEN BY", 9),
    ("RULE", 18),
    ("GAINED HERE, OR WHY NONE", None),
)
_NARROW: Final = 140


class PairsGroup(TyperGroup):
    """Whatever is no command of its own is meant for `show`: `specd pairs MODEL --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, "--help"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PairsGroup,
    help="Say which drafter serves which model and why some have none; change it; suggest others.",
    subcommand_metavar="[MODEL] | COMMAND [ARGS]...",
    epilog="Without a command it shows: specd pairs [MODEL] [--json] [--forget]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """pair None: `problem` says what is wrong with the model.  learned None: nothing yet, here.

    draft_length: where drafts begin and end by the rule that chose the drafter.
    """

    model: str
    pair: Pair | None = None
    problem: str = ""
    learned: Entry | None = None
    draft_length: tuple[int, int] | None = None


@app.command("show")
def pairs(
    model: Annotated[str, typer.Argument(help="One model; all of the store without it.")] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For a script.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget what was learned of the model, or of all.")
    ] = False,
) -> None:
    """Say who drafts for which model, by which rule, what that gained, and why some have none."""
    settings = Settings()
    history = History(settings.state_dir / HISTORY_FILE if settings.state_dir else None)
    known = Vocabularies.beside(history)
    library = Library(
        settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
    )
    console = make_console()
    if forget:
        _forget(history, library.resolve(model) if model else None, console)
        return
    rules = load_rules(settings.pairs_file)
    names = [model] if model else sorted(name.short for name in library.names())
    entries = history.entries()
    # As the daemon names it; where nothing has been learned, nobody need be asked.
    here = machine_name(Devices(probe(), igpu=settings.igpu)()) if entries else ""
    on = settings.speculative_decode
    finder = Pairs(library, rules, enabled=on, history=history, machine=here, vocabularies=known)
    learned = Learned(entries, here)
    rows = [_row(name, library, finder, rules, learned.of, only=bool(model)) for name in names]
    if as_json:
        typer.echo(json.dumps([to_json(row) for row in rows], indent=2, ensure_ascii=False))
        return
    console.print(table_of(rows, console.width))
    console.print(f"\nmodels: {settings.models}", style="dim")


def _row(
    name: str,
    library: Library,
    finder: Pairs,
    rules: RuleBook,
    learned: Callable[[Pair], Entry | None],
    *,
    only: bool,
) -> Row:
    """What is wrong with a model is said in its row; with the one asked for, it is raised."""
    try:
        pair = finder.pair(library.resolve(name))
    except SpecdError as error:
        if only:
            raise
        return Row(model=name, problem=str(error))
    rule = rules.rule_for(pair.target.name) if pair.rule else None
    return Row(
        model=pair.target.name,
        pair=pair,
        learned=learned(pair),
        draft_length=rule.draft_length if rule is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Learned:
    """The history of one machine.  entries: the last used first."""

    entries: Sequence[Entry]
    machine: str

    def of(self, pair: Pair) -> Entry | None:
        """As it was loaded last: with another cache type or thread count it may gain otherwise."""
        try:
            target = identity_of(pair.target.weights)
            drafter = identity_of(pair.drafter.weights) if pair.drafter else ""
            adapters = identities_of(pair.target.adapters)
        except OSError:
            return None
        wanted = target, adapters, drafter, self.machine
        for entry in self.entries:
            key = entry.key
            if (key.target, key.adapters, key.drafter, key.machine) == wanted:
                return entry
        return None


def _forget(history: History, model: ModelRef | None, console: Console) -> None:
    try:
        target = identity_of(model.weights) if model is not None else None
        n = history.forget(lambda key: target is None or key.target == target)
    except OSError as error:
        raise StoreError(f"the history cannot be changed: {error}") from error
    console.print(f"forgot {n} pair{'' if n == 1 else 's'}")


# --------------------------------------------------------------------------- in words


def table_of(rows: Iterable[Row], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, folded in _COLUMNS:
        at_most = folded if width < _NARROW else None
        table.add_column(header, overflow="fold", max_width=at_most)
    for row in rows:
        gained_or_why = "\n".join(filter(None, (_gains(row.learned), _why_none(row))))
        table.add_row(row.model, *_drafter(row), _rule(row), gained_or_why)
    return table


def _drafter(row: Row) -> tuple[str, str]:
    drafter = row.pair.drafter if row.pair is not None else None
    return (drafter.name, drafter.source) if drafter is not None else ("-", "-")


def _rule(row: Row) -> str:
    return (row.pair.rule if row.pair is not None else "") or "-"


def _why_none(row: Row) -> str:
    if row.pair is None:
        return row.problem
    return row.pair.detail or (row.pair.reason.value if row.pair.reason else "")


def _gains(learned: Entry | None) -> str:
    """A line for each drafter and band that was tried."""
    if learned is None:
        return ""
    return "\n".join(_gain(band) for band in _tried(learned))


def _tried(learned: Entry) -> list[BandHistory]:
    return [
        band
        for band in learned.history.bands
        if band.gain is not None and band.n_drafted and band.band < len(TEMPERATURE_BANDS)
    ]


def _gain(band: BandHistory) -> str:
    who = "prompt lookup " if band.drafter == "lookup" else ""
    kept = f"{_rate(band):.0%} of {band.n_drafted} kept"
    parked = f", resting: {band.parked}" if band.parked else ""
    return f"{who}{band.gain:.2f}× at {TEMPERATURE_BANDS[band.band]} ({kept}{parked})"


def _rate(band: BandHistory) -> float:
    return min(band.n_accepted / band.n_drafted, 1.0)


def to_json(row: Row) -> dict[str, Any]:
    """`gained` is null where nothing was learned here."""
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
        "gained": _gained(learned) if learned is not None else None,
    }


def _gained(learned: Entry) -> dict[str, Any]:
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
            for band in _tried(learned)
        ],
        "target_s": dict(history.target_s),
    }


app.command("suggest")(pairs_suggest.suggest)
app.command("add")(pairs_edit.add)
app.command("refuse")(pairs_edit.refuse)
app.command("remove")(pairs_edit.remove)
