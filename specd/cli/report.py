"""What an answer cost and what speculation gained: the lines of `--verbose`, after Ollama's."""

from __future__ import annotations

from typing import Final

from specd.cli.answers import Json

_WIDTH: Final = 22


def report_lines(final: Json) -> list[str]:
    """What the final object of an answer says of speed and of speculation."""
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
        facts.append(("speculation", speculation_words(speculation)))
    return [f"{title + ':':<{_WIDTH}}{value}" for title, value in facts]


def speculation_words(speculation: Json) -> str:
    """One line: who drafted, what was kept, or why nothing was drafted."""
    words = [f"{speculation['state']}"]
    if drafter := speculation.get("drafter"):
        words.append(f"drafter {drafter}")
    if n := speculation.get("draft_n"):
        kept = speculation["draft_n_accepted"]
        words.append(f"{kept} of {n} drafted tokens accepted ({kept / n:.0%})")
    if speedup := speculation.get("speedup"):
        words.append(f"{speedup:.2f} × plain")
    if reason := speculation.get("detail") or speculation.get("reason"):
        words.append(str(reason))
    return ", ".join(words)


def go_duration(ns: int) -> str:
    """As Go prints a time.Duration: 250µs, 12.5ms, 1.5s, 2m3.4s, 1h0m0s."""
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
