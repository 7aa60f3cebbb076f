"""Format the statistics of `--verbose`: Ollama's lines, then one on drafting."""

from __future__ import annotations

import textwrap
from typing import Final

from rich.cells import cell_len

from specd.cli.responses import Json

_WIDTH: Final = 22


def report_lines(final: Json, width: int | None = None) -> list[str]:
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
    line = f"{title + ':':<{_WIDTH}}{value}"
    if width is None or cell_len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        max(width, 2 * _WIDTH),
        subsequent_indent=" " * _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_drafting(speculation: Json) -> str:
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
