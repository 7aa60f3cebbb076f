"""Calculate the results of a soak as plain numbers: docs/reliability/soak.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.soak.clients import End, Outcome
from benchmarks.soak.daemon_monitor import DraftingStats
from benchmarks.soak.request_log import count_log_lines, find_bad_log_lines
from benchmarks.soak.resource_monitor import (
    PIPES_OF_HELPER,
    Growth,
    Sample,
    by_generation,
    growth,
    last_half,
    resident_engines,
)
from benchmarks.soak.session import KILL_ECHO_S, SoakRecord
from benchmarks.soak.traffic import ROLES
from specd.bench.report import MachineInfo

#: The most examples of problems that are kept.
_EXAMPLES = 20
_POINTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The requests of one role.  failed: its engine was killed meanwhile."""

    role: str
    what: str
    n_clients: int
    sent: int
    done: int
    refused: int
    failed: int
    left: int
    median_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Milliseconds to the first byte of /api/version."""

    n: int
    unanswered: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The daemon without a client and an engine, before and after the hour.

    n_fds, n_processes: without the processes that render templates, which the daemon keeps.
    """

    rss_bytes: tuple[int, int]
    n_fds: tuple[int, int]
    n_threads: tuple[int, int]
    n_processes: tuple[int, int]
    n_scratch_files: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResults:
    """The results of a soak.

    growths: quantity → growth over the last half.  problems: sentences, the first of each kind.
    n_bad_log_lines: requests without exactly one line in the daemon's log.
    broken: requests without exactly one end.  unexplained: errors without a known cause.
    """

    began: str
    machine: MachineInfo
    minutes: float
    played_s: float
    behind_s: float
    n_unplayed: int
    n_clients: int
    seed: int
    rows: list[Row]
    kills: dict[str, int]
    loads: dict[str, int]
    broken: int
    unexplained: int
    compared: int
    different: int
    n_bad_log_lines: int
    n_under_way: int
    problems: list[str]
    growths: dict[str, Growth]
    generations: dict[str, list[tuple[float, float]]]
    drafting: DraftingStats
    series: list[tuple[float, float]]
    idle: Idle
    probes: Probes
    cpu_share: dict[str, float]
    tracebacks: int
    exit_status: int | None
    n_left_processes: int
    n_left_files: int

    @property
    def n_sent(self) -> int:
        return sum(row.sent for row in self.rows)


def results(record: SoakRecord, log: str) -> SoakResults:
    half = last_half(record.samples)
    compared, different = _compared(record)
    broken = [each for each in record.outcomes if each.end is End.BROKEN]
    unexplained = [each for each in record.outcomes if is_unexplained(record, each)]
    unkept = find_bad_log_lines(count_log_lines(log.splitlines()), record.outcomes)
    return SoakResults(
        began=datetime.now(UTC).isoformat(timespec="minutes"),
        machine=MachineInfo.read(),
        minutes=record.config.minutes,
        played_s=round(record.played_s, 1),
        behind_s=round(record.behind_s, 1),
        n_unplayed=record.n_unplayed,
        n_clients=record.config.n_clients,
        seed=record.config.seed,
        rows=list(_rows(record)),
        kills=dict(Counter(kill.model for kill in record.kills)),
        loads=dict(Counter(model for model, _ in _engines(record.samples))),
        broken=len(broken),
        unexplained=len(unexplained),
        compared=compared,
        different=len(different),
        n_bad_log_lines=len(unkept),
        n_under_way=record.n_under_way,
        problems=[_words(each) for each in (*broken, *unexplained, *different, *unkept)][
            :_EXAMPLES
        ],
        growths=_growths(half),
        generations={
            f"{model}, context of {n_ctx}": points
            for (model, n_ctx), points in by_generation(record.samples).items()
        },
        drafting=record.drafting,
        series=_series(record.samples),
        idle=_idle(record),
        probes=_probes(record.probes),
        cpu_share={name: round(share, 3) for name, share in record.cpu_share.items()},
        tracebacks=log.count("Traceback"),
        exit_status=record.exit_status,
        n_left_processes=record.n_left_processes,
        n_left_files=record.n_left_files,
    )


# --------------------------------------------------------------------------- requests


def is_unexplained(record: SoakRecord, outcome: Outcome) -> bool:
    """Return whether an error has no known cause: no engine of its model was killed meanwhile."""
    match outcome.end:
        case End.REFUSED if outcome.status == outcome.ask.expected:
            return False
        case End.DONE | End.LEFT | End.BROKEN:
            return outcome.end is End.DONE and outcome.ask.expected != 200
    return not any(
        kill.model == outcome.ask.model
        and outcome.began_s - KILL_ECHO_S <= kill.at_s <= outcome.ended_s
        for kill in record.kills
    )


def _compared(record: SoakRecord) -> tuple[int, list[Outcome]]:
    """Return how many answers have a reference, and which of them differ from it."""
    n, different = 0, []
    for outcome in record.outcomes:
        alone = record.alone.get(outcome.ask.key)
        if alone is None or alone.end is not outcome.end or outcome.end is not End.DONE:
            continue
        n += 1
        if outcome.text != alone.text:
            different.append(outcome)
    return n, different


def _words(outcome: Outcome) -> str:
    ask = outcome.ask
    body = (ask.body(streamed=outcome.streamed) or b"").decode(errors="replace")
    return (
        f"{outcome.role}: {ask.path} {body[:200]}: {outcome.end}, status {outcome.status},"
        f" {outcome.detail or repr(outcome.text[:60])}"
    )


def _rows(record: SoakRecord) -> Iterator[Row]:
    for role in ROLES:
        own = [each for each in record.outcomes if each.role == role.name]
        ends = Counter(each.end for each in own)
        took = [each.ended_s - each.began_s for each in own if each.end is not End.LEFT]
        killed = [each for each in own if each.end is End.REFUSED]
        refused = sum(each.status == each.ask.expected for each in killed)
        yield Row(
            role=role.name,
            what=role.what,
            n_clients=role.n,
            sent=len(own),
            done=ends[End.DONE],
            refused=refused,
            failed=ends[End.FAILED] + len(killed) - refused,
            left=ends[End.LEFT],
            median_s=round(percentile(took, 0.5), 3),
            p99_s=round(percentile(took, 0.99), 3),
        )


# --------------------------------------------------------------------------- what is held


def _engines(samples: Sequence[Sample]) -> set[tuple[str, int]]:
    return {engine for sample in samples for engine in sample.engines}


def _growths(half: Sequence[Sample]) -> dict[str, Growth]:
    times = [sample.at_s for sample in half]
    series: dict[str, list[float]] = {
        "daemon: RSS": [sample.daemon.rss_bytes for sample in half],
        "daemon: file descriptors": [sample.daemon.n_fds for sample in half],
        "daemon: threads": [sample.daemon.n_threads for sample in half],
        "processes": [sample.n_processes for sample in half],
        "temporary files": [sample.n_scratch_files for sample in half],
        "state: bytes": [sample.state_bytes for sample in half],
    }
    for engine in resident_engines(half):
        held = [sample.engines[engine] for sample in half]
        name = f"engine of {engine[0]}"
        series[f"{name}: RSS"] = [each.rss_bytes for each in held]
        series[f"{name}: file descriptors"] = [each.n_fds for each in held]
        series[f"{name}: threads"] = [each.n_threads for each in held]
    return {
        what: grown
        for what, values in series.items()
        if (grown := growth(times, values)) is not None
    }


def _series(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return (minute, daemon's RSS in MiB) at some moments."""
    step = max(1, len(samples) // _POINTS)
    began_s = samples[0].at_s
    return [
        (round((each.at_s - began_s) / 60, 2), round(each.daemon.rss_bytes / 2**20, 1))
        for each in samples[::step]
    ]


def _idle(record: SoakRecord) -> Idle:
    before, after = record.idle_before, record.idle_after
    assert before is not None
    assert after is not None
    return Idle(
        rss_bytes=(before.daemon.rss_bytes, after.daemon.rss_bytes),
        n_fds=(_own_fds(before), _own_fds(after)),
        n_threads=(before.daemon.n_threads, after.daemon.n_threads),
        n_processes=(before.n_processes - before.n_helpers, after.n_processes - after.n_helpers),
        n_scratch_files=(before.n_scratch_files, after.n_scratch_files),
    )


def _own_fds(sample: Sample) -> int:
    return sample.daemon.n_fds - PIPES_OF_HELPER * sample.n_helpers


def _probes(probes: Sequence[tuple[float, float]]) -> Probes:
    took = [took_ms for _, took_ms in probes if took_ms >= 0]
    return Probes(
        n=len(probes),
        unanswered=len(probes) - len(took),
        p50_ms=round(percentile(took, 0.5), 2),
        p99_ms=round(percentile(took, 0.99), 2),
        max_ms=round(max(took, default=0.0), 2),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by the nearest rank; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
