"""Judge each demand on a soak by its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scripts.soak.resource_monitor import Growth, growth
from scripts.soak.results import SoakResults

MOST_GROWTH: Final = 0.02
MOST_VERSION_MS: Final = 50.0
#: Fewer say nothing of the next.  How much of its caches each has touched is chance, so that only
#: what is sure counts.
_ENGINES: Final = 5
#: Of what is counted in whole things, and comes and goes with every request.
_FEW: Final = 2
_MIB: Final = 2**20


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
        "the daemon's log says once how each ended, those left with them",
        "all",
        f"{sent - found.n_bad_log_lines:,} of {sent:,}",
        found.n_bad_log_lines == 0 and sent > 0,
    )
    yield Verdict(
        "the whole hour was played",
        "all",
        f"{sent:,} of {sent + found.n_unplayed:,} in {found.played_s / 60:.1f} minutes",
        found.n_unplayed == 0,
    )
    yield Verdict(
        "errors that no killed engine explains",
        "0",
        f"{found.unexplained} ({sum(found.kills.values())} engines killed,"
        f" {sum(row.failed for row in found.rows)} requests told so)",
        found.unexplained == 0,
    )
    yield Verdict(
        "seeded answers are what they are alone",
        "all",
        f"{found.compared - found.different:,} of {found.compared:,}",
        found.different == 0 and found.compared > 0,
    )


def _version(found: SoakResults) -> Iterator[Verdict]:
    probes = found.probes
    yield Verdict(
        "first byte of /api/version meanwhile, p99",
        f"≤ {MOST_VERSION_MS:.0f} ms",
        f"{probes.p99_ms:.1f} ms (median {probes.p50_ms:.1f}, worst {probes.max_ms:.1f},"
        f" {probes.n:,} probes, {probes.unanswered} unanswered)",
        probes.p99_ms <= MOST_VERSION_MS and probes.unanswered == 0 and probes.n > 0,
    )


def _memory(found: SoakResults) -> Iterator[Verdict]:
    """Yield the verdicts on memory; a run that is too short passes none."""
    if not found.growths:
        yield Verdict("growth over the last half", "≤ 2 %", "too short to tell", passed=False)
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
                f"growth from engine to engine at the same age, {model}",
                "≤ 2 %",
                f"{grown_.by_slope:+.1%}, surely {grown_.surely:+.1%} ({len(points)} engines of"
                f" {grown_.middle / _MIB:.0f} MiB)",
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
            f"unloaded and without clients, {what} before → after",
            "as before",
            f"{before} → {after}",
            after <= before,
        )
    yield Verdict(
        "answers that it believes under way, without clients",
        "0",
        str(found.n_under_way),
        found.n_under_way == 0,
    )
    yield Verdict(
        "tracebacks in the daemon's log", "0", str(found.tracebacks), found.tracebacks == 0
    )
    yield Verdict(
        "SIGTERM afterwards: exit status, processes and files left",
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
