"""Format figures and statistics in Ollama's words, and columns that a script can parse."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

if TYPE_CHECKING:
    from rich.console import Console

_FOR_EVER = timedelta(days=20 * 365)
_DAY_H = 24
#: Largest unit first: the number of hours from which it is used, and its length in hours.
_LONG_STEPS = (
    ("years", 2 * 365 * _DAY_H, 365 * _DAY_H),
    ("months", 60 * _DAY_H, 30 * _DAY_H),
    ("weeks", 14 * _DAY_H, 7 * _DAY_H),
    ("days", 48, _DAY_H),
)
#: Columns for the titles of the statistics.
_TITLE_WIDTH = 22
#: Rich cuts lines at 80 columns in a pipe, but a script needs whole lines.
_PIPE_WIDTH = 1000


def make_console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, emoji=False, width=width)


def output_width() -> int:
    """Return the terminal's width in columns; for a pipe, a width that no line reaches."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def columns(rows: Sequence[Sequence[str]], gap: int = 4) -> list[str]:
    """Return one line per row, without trailing blanks and independent of the terminal's width."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(
            cell + " " * (width - cell_len(cell) + gap)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return one line per row with Ollama's gaps, or narrower ones if a line exceeds `width`."""
    lines = columns(rows)
    fits = max(map(cell_len, lines)) <= width
    return lines if fits else columns(rows, gap=2)


def wrap_line(line: str, width: int, first: str = "  ", others: str = "    ") -> list[str]:
    """Return the line in pieces of `width` columns.  first, others: their indents."""
    return textwrap.wrap(
        line,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_with_details(
    console: Console, lines: Sequence[str], details: Sequence[Sequence[str]]
) -> None:
    """Print a header and rows, each row with its sentences below it, dim and indented."""
    for line, parts in zip(lines, [(), *details], strict=True):
        console.print(line, markup=False, soft_wrap=True)
        for part in parts:
            for piece in wrap_line(part, console.width):
                console.print(piece, style="dim", markup=False, soft_wrap=True)


def print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def format_bytes(n_bytes: int) -> str:
    """Return decimal units, truncated as Ollama does: "1.3 GB", "13 GB"."""
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    whole = value >= 10 or value == int(value)
    return f"{int(value)} {unit}" if whole else f"{value:.1f} {unit}"


def format_count(n: float) -> str:
    """Return a number of parameters: "8B", "1.2B", "137.25M", "12K"."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if n >= size:
            value = n / size
            return f"{value:.{0 if value == int(value) else digits}f}{unit}"
    return f"{n:.0f}"


def format_duration(span: timedelta) -> str:
    """Return the time span in the largest unit that is exact enough: "30 hours", "3 weeks"."""
    seconds = int(abs(span.total_seconds()))
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return "1 second" if seconds == 1 else f"{seconds} seconds"
    if seconds < 3600:
        minutes = seconds // 60
        return "about a minute" if minutes == 1 else f"{minutes} minutes"
    hours = int(seconds / 3600 + 0.5)
    if hours == 1:
        return "about an hour"
    for unit, least, length in _LONG_STEPS:
        if hours >= least:
            return f"{hours // length} {unit}"
    return f"{hours} hours"


def format_past(timestamp: str, now: datetime | None = None) -> str:
    """Return an API timestamp as "3 days ago"; "" if it is not a timestamp."""
    then = _read(timestamp)
    return _sentence(f"{format_duration((now or datetime.now(UTC)) - then)} ago") if then else ""


def format_expiry(timestamp: str, now: datetime | None = None) -> str:
    """Return a model's expiry in Ollama's words: Forever, Stopping..., "4 minutes from now"."""
    then = _read(timestamp)
    if then is None:
        return ""
    left = then - (now or datetime.now(UTC))
    if left > _FOR_EVER:
        return "Forever"
    return _sentence(f"{format_duration(left)} from now") if left > timedelta() else "Stopping..."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _read(timestamp: str) -> datetime | None:
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


# --------------------------------------------------------------------------- --verbose


def report_lines(final: dict[str, Any], width: int | None = None) -> list[str]:
    """Return the lines on speed and drafting from the final object of an answer.

    width: the terminal's width in columns; longer lines are wrapped at words.
    """
    facts: list[tuple[str, str]] = [
        (f"{name} duration", go_duration(final[f"{name}_duration"]))
        for name in ("total", "load")
        if final.get(f"{name}_duration")
    ]
    for name in ("prompt_eval", "eval"):
        n, ns = final.get(f"{name}_count", 0), final.get(f"{name}_duration", 0)
        title = name.replace("_", " ")
        if n:
            facts.append((f"{title} count", f"{n} token(s)"))
        if ns:
            facts.append((f"{title} duration", go_duration(ns)))
            facts.append((f"{title} rate", f"{n / ns * 1e9:.2f} tokens/s"))
    if speculation := final.get("speculation"):
        facts.append(("drafting", format_drafting(speculation)))
    return [line for title, value in facts for line in _wrapped(title, value, width)]


def _wrapped(title: str, value: str, width: int | None) -> list[str]:
    line = f"{title + ':':<{_TITLE_WIDTH}}{value}"
    if width is None or cell_len(line) <= width:
        return [line]
    return wrap_line(line, max(width, 2 * _TITLE_WIDTH), "", " " * _TITLE_WIDTH)


def format_drafting(speculation: dict[str, Any]) -> str:
    """Return the number of accepted drafts, or why there were none."""
    n = speculation.get("draft_n")
    if not n:
        why = speculation.get("detail") or speculation.get("reason")
        return f"none: {why}" if why else "none"
    accepted = speculation["draft_n_accepted"]
    words = [f"{accepted} of {n} tokens accepted ({accepted / n:.0%})"]
    if speedup := speculation.get("speedup"):
        words.append(f"{speedup:.2f}× plain")
    if drafter := speculation.get("drafter"):
        words.append(str(drafter))
    return ", ".join(words)


def go_duration(ns: int) -> str:
    """Format a duration as Go prints a time.Duration: 250µs, 12.5ms, 1.5s, 2m3.4s, 1h0m0s."""
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if ns < size * 1000:
            return f"{_decimal(ns, size)}{unit}"
    minutes, rest = divmod(ns, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, 10**9)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(ns: int, size: int) -> str:
    whole, rest = divmod(ns, size)
    fraction = f"{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else f"{whole}"
