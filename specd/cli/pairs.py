"""`specd pairs`: which drafter serves which model, and why some have none.

Read from the store and the rules themselves, so that it needs no daemon and loads no model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table

from specd.cli.words import make_console
from specd.core import Pair
from specd.errors import SpecdError
from specd.pairs import Pairs, load_rules
from specd.settings import Settings
from specd.store import Library

_HEADERS = ("MODEL", "DRAFTER", "CHOSEN BY", "WHY NONE")


def pairs(
    model: Annotated[str, typer.Argument(help="One model; all of the store without it.")] = "",
) -> None:
    """Say which drafter serves which model, and why some have none."""
    settings = Settings()
    library = Library(settings.models, demo=settings.demo)
    finder = Pairs(library, load_rules(settings.pairs_file), enabled=settings.speculative_decode)
    names = [model] if model else sorted(name.short for name in library.names())
    console = make_console()
    console.print(table_of(_row(name, library, finder, only=bool(model)) for name in names))
    console.print(f"\nmodels: {settings.models}", style="dim")


def _row(name: str, library: Library, finder: Pairs, *, only: bool) -> Pair | tuple[str, str]:
    """A pair, or the name with what is wrong with the model; the one asked for raises instead."""
    try:
        return finder.pair(library.resolve(name))
    except SpecdError as error:
        if only:
            raise
        return name, str(error)


def table_of(rows: Iterable[Pair | tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for header in _HEADERS:
        table.add_column(header, overflow="fold")
    for row in rows:
        if isinstance(row, tuple):
            table.add_row(row[0], "-", "-", row[1])
        elif row.drafter is not None:
            table.add_row(row.target.name, row.drafter.name, row.drafter.source, "")
        else:
            reason = row.reason.value if row.reason else ""
            table.add_row(row.target.name, "-", "-", row.detail or reason)
    return table
