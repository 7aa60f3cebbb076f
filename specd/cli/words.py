"""Figures as a person reads them, and tables that a script can read too."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.table import Table

_STEPS = (("year", 365 * 86400), ("month", 30 * 86400), ("week", 7 * 86400), ("day", 86400))
_SHORT_STEPS = (("hour", 3600), ("minute", 60), ("second", 1))
_FOR_EVER = timedelta(days=20 * 365)


def make_console() -> Console:
    """Rich cuts lines at 80 columns where it writes to a pipe; a script wants them whole."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def span_words(span: timedelta) -> str:
    """The largest unit alone: "3 days", "1 hour"."""
    seconds = int(abs(span.total_seconds()))
    for unit, length in (*_STEPS, *_SHORT_STEPS):
        if seconds >= length:
            n = seconds // length
            return f"{n} {unit}" if n == 1 else f"{n} {unit}s"
    return "less than a second"


def past_words(timestamp: str, now: datetime | None = None) -> str:
    """An API timestamp as "3 days ago"; empty where it is none."""
    then = _read(timestamp)
    return f"{span_words((now or datetime.now(UTC)) - then)} ago" if then else ""


def expiry_words(timestamp: str, now: datetime | None = None) -> str:
    """When a model leaves, in Ollama's words: Forever, Stopping..., "4 minutes from now"."""
    then = _read(timestamp)
    if then is None:
        return ""
    left = then - (now or datetime.now(UTC))
    if left > _FOR_EVER:
        return "Forever"
    return f"{span_words(left)} from now" if left > timedelta() else "Stopping..."


def _read(timestamp: str) -> datetime | None:
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def plain_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Columns and nothing else, as Ollama prints them."""
    table = Table(box=None, pad_edge=False, padding=(0, 4, 0, 0))
    for header in headers:
        table.add_column(header, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
