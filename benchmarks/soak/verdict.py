"""Judge each demand on a soak by its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.soak.resource_monitor import Growth, growth
from benchmarks.soak.results import SoakResults
from benchmarks.soak.soak_daemon import SETTINGS
from benchmarks.soak.traffic import HOUR_S, PLAYED_MINUTES

MOST_GROWTH: Final = 0.02
MOST_VERSION_MS: Final = 50.0
#: Fewer engines do not predict the next.  An engine has touched a random part of its caches, so
#: only the lower bound of the growth counts.
_ENGINES: Final = 5
#: Allowed growth of counts that change with every request.
_FEW: Final = 2
_MIB: Final = 2**20
_SPEED: Final = HOUR_S / (PLAYED_MINUTES * 60)
#: The settings without which equal requests may be rounded to other tokens under load.
_EXACT: Final = ", ".join(
    f"`{name}={SETTINGS[name]}`" for name in ("OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION")
)


@dataclass(frozen=True, slots=True)
class Verdict:
    demand: str
    goal: str
    measured: str
    passed: bool


def judge(found: SoakResults) -> list[Verdict]:
    return [*_requests(found), *_version(found), *_memory(found), *_left(found)]


def _requests(found: SoakResults) -> Iterator[Verdict]:
    sent = found.n_sent
    yield Verdict(
        "every request ends in exactly one terminal event",
        "all",
        f"{sent - found.broken:,} of {sent:,}",
        found.broken == 0 and sent > 0,
    )
    yield Verdict(
        "the daemon's log has one line for each, abandoned ones included",
        "all",
        f"{sent - found.n_bad_log_lines:,} of {sent:,}",
        found.n_bad_log_lines == 0 and sent > 0,
    )
    yield Verdict(
        f"requests of the script that were sent (one hour of traffic, {_SPEED:g} times as fast)",
        "all",
        f"{sent:,} of {sent + found.n_unplayed:,} in {found.played_s / 60:.1f} minutes",
        found.n_unplayed == 0,
    )
    yield Verdict(
        "errors without a killed engine as their cause",
        "0",
        f"{found.unexplained} ({sum(found.kills.values())} engines killed,"
        f" {sum(row.failed for row in found.rows)} requests failed by that)",
        found.unexplained == 0,
    )
    yield Verdict(
        f"seeded answers are the same as without load ({_EXACT}, so that rounding is small enough"
        " to compare them)",
        "all",
        f"{found.compared - found.different:,} of {found.compared:,}",
        found.different == 0 and found.compared > 0,
    )


def _version(found: SoakResults) -> Iterator[Verdict]:
    probes = found.probes
    yield Verdict(
        "first byte of /api/version under load, p99",
        f"≤ {MOST_VERSION_MS:.0f} ms",
        f"{probes.p99_ms:.1f} ms (median {probes.p50_ms:.1f}, worst {probes.max_ms:.1f},"
        f" {probes.n:,} probes, {probes.unanswered} unanswered)",
        probes.p99_ms <= MOST_VERSION_MS and probes.unanswered == 0 and probes.n > 0,
    )


def _memory(found: SoakResults) -> Iterator[Verdict]:
    """Yield the verdicts on memory; a run that is too short passes none."""
    if not found.growths:
        yield Verdict("growth over the last half", "≤ 2 %", "the run is too short", passed=False)
    for what, grown in found.growths.items():
        is_size = what.endswith(("RSS", "bytes"))
        yield Verdict(
            f"growth over the last half, {what}",
            "≤ 2 %" if is_size else f"≤ {_FEW}",
            _size(grown) if is_size else f"{grown.middle:.0f} → {grown.last:.0f}",
            grown.worst <= MOST_GROWTH or (not is_size and grown.last - grown.middle <= _FEW),
        )
    for model, points in found.generations.items():
        grown_ = growth([at for at, _ in points], [rss for _, rss in points], enough=_ENGINES)
        if grown_ is not None:
            yield Verdict(
                f"growth from each engine to the next at the same age, {model}",
                "≤ 2 %",
                f"median change {grown_.by_slope:+z.1%}, lower bound of the 95 % interval"
                f" {grown_.surely:+z.1%} ({len(points)} engines of {grown_.middle / _MIB:.0f} MiB)",
                grown_.surely <= MOST_GROWTH,
            )


def _size(grown: Growth) -> str:
    unit, name = (_MIB, "MiB") if grown.middle > _MIB else (1024, "KiB")
    return (
        f"{grown.worst:+.1%} ({grown.middle / unit:.1f} → {grown.last / unit:.1f} {name};"
        f" by slope {grown.by_slope:+.1%})"
    )


def _left(found: SoakResults) -> Iterator[Verdict]:
    idle = found.idle
    for what, (before, after) in {
        "file descriptors": idle.n_fds,
        "processes": idle.n_processes,
        "temporary files": idle.n_scratch_files,
    }.items():
        yield Verdict(
            f"idle, {what} before → after the hour",
            "no more",
            f"{before} → {after}",
            after <= before,
        )
    yield Verdict(
        "requests that the daemon counts as active without clients",
        "0",
        str(found.n_under_way),
        found.n_under_way == 0,
    )
    yield Verdict(
        "tracebacks in the daemon's log", "0", str(found.tracebacks), found.tracebacks == 0
    )
    yield Verdict(
        "SIGTERM at the end: exit status, processes and files left",
        "0, 0, 0",
        f"{found.exit_status}, {found.n_left_processes}, {found.n_left_files}",
        (found.exit_status, found.n_left_processes, found.n_left_files) == (0, 0, 0),
    )


def table(verdicts: list[Verdict]) -> str:
    rows = [
        ("PASS" if each.passed else "FAIL", each.demand, each.goal, each.measured)
        for each in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )
