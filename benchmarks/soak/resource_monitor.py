"""Record the resources of the daemon and its engines every second, and test for growth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks.soak.soak_daemon import SoakDaemon

EVERY_S: Final = 1.0
_HELPER: Final = "specd.prompt"
#: File descriptors of the daemon for each of them.
PIPES_OF_HELPER: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """One process at one moment.  age_s: since its start.  n_ctx: of an engine, 0 if unknown."""

    rss_bytes: int
    n_fds: int
    n_threads: int
    age_s: float
    n_ctx: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The resources at one moment.

    at_s: on the monotonic clock.  engines: (model, pid) → usage.
    n_helpers: processes that render templates; the daemon keeps a few of them.
    """

    at_s: float
    daemon: ProcessUsage
    engines: dict[tuple[str, int], ProcessUsage]
    n_processes: int
    n_helpers: int
    n_scratch_files: int
    state_bytes: int


@dataclass(slots=True)
class ResourceMonitor:
    soak_daemon: SoakDaemon
    samples: list[Sample] = field(default_factory=list)
    _models: dict[int, str] = field(default_factory=dict)

    def read(self, contexts: Mapping[str, int] | None = None) -> Sample:
        """Add a sample.  Raises psutil.NoSuchProcess if the daemon has ended.

        contexts: model → tokens of its context.
        """
        daemon = psutil.Process(self.soak_daemon.pid)
        children = daemon.children(recursive=True)
        sample = Sample(
            at_s=time.monotonic(),
            daemon=_process_usage(daemon),
            engines=dict(self._engines(children, contexts or {})),
            n_processes=len(children) + 1,
            n_helpers=sum(map(_is_helper, children)),
            n_scratch_files=sum(1 for _ in self.soak_daemon.scratch.rglob("*")),
            state_bytes=_bytes_below(self.soak_daemon.state),
        )
        self.samples.append(sample)
        return sample

    def engine(self, model: str) -> psutil.Process | None:
        """Return the engine of a model in the newest sample.  Raises psutil.NoSuchProcess."""
        held = self.samples[-1].engines if self.samples else {}
        return next((psutil.Process(pid) for name, pid in held if name == model), None)

    def _engines(
        self, children: Sequence[psutil.Process], contexts: Mapping[str, int]
    ) -> Iterator[tuple[tuple[str, int], ProcessUsage]]:
        for child in children:
            try:
                model = self._models.get(child.pid) or self.soak_daemon.model_of(child)
                if model is None:
                    continue
                self._models[child.pid] = model
                yield (model, child.pid), _process_usage(child, contexts.get(model, 0))
            except psutil.Error:
                continue  # it has ended


def _process_usage(process: psutil.Process, n_ctx: int = 0) -> ProcessUsage:
    with process.oneshot():
        return ProcessUsage(
            rss_bytes=process.memory_info().rss,
            n_fds=process.num_fds(),
            n_threads=process.num_threads(),
            age_s=time.time() - process.create_time(),
            n_ctx=n_ctx,
        )


def _is_helper(process: psutil.Process) -> bool:
    try:
        return _HELPER in process.cmdline()
    except psutil.Error:
        return False


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # its next version has replaced it
    return total


# --------------------------------------------------------------------------- growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The growth over the last half.

    middle, last: medians of the tenth after the middle and of the last tenth.
    by_slope: the Theil–Sen slope over the half.  surely: its lower bound with 95 % confidence.
    Shares are of `middle`.
    """

    n: int
    middle: float
    last: float
    by_medians: float
    by_slope: float
    surely: float

    @property
    def worst(self) -> float:
        return max(self.by_medians, self.by_slope)


def growth(times: Sequence[float], values: Sequence[float], *, enough: int = 20) -> Growth | None:
    """Return the growth in the last half of a series; None if it has fewer than `enough` points.

    There are two measures, since each misses something: medians miss a spike at neither end, and
    the slope misses a step.
    """
    n = len(values)
    if n < enough:
        return None
    from scipy.stats import theilslopes  # type: ignore[import-untyped]  # noqa: PLC0415 - slow

    fifth = max(1, n // 5)  # a tenth of the whole
    middle = statistics.median(values[:fifth])
    last = statistics.median(values[-fifth:])
    slope = theilslopes(values, times)
    base = middle or 1.0
    span_s = times[-1] - times[0]
    return Growth(
        n=n,
        middle=middle,
        last=last,
        by_medians=(last - middle) / base,
        by_slope=float(slope.slope) * span_s / base,
        surely=float(slope.low_slope) * span_s / base,
    )


def last_half(samples: Sequence[Sample]) -> list[Sample]:
    begin_s, end_s = samples[0].at_s, samples[-1].at_s
    return [sample for sample in samples if sample.at_s >= (begin_s + end_s) / 2]


def resident_engines(samples: Sequence[Sample]) -> Iterator[tuple[str, int]]:
    """Yield the engines that are in every one of these samples."""
    everywhere = set(samples[0].engines)
    for sample in samples:
        everywhere &= set(sample.engines)
    yield from sorted(everywhere)


#: Successive engines are compared at this age; younger ones are still filling their caches.
AGE_S: Final = (8.0, 15.0)


def by_generation(samples: Sequence[Sample]) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return model and context → (time, median RSS in bytes at AGE_S) of each of its engines."""
    seen: dict[tuple[str, int], dict[int, list[tuple[float, int]]]] = {}
    for sample in samples:
        for (model, pid), held in sample.engines.items():
            if AGE_S[0] <= held.age_s < AGE_S[1] and held.n_ctx:
                of_kind = seen.setdefault((model, held.n_ctx), {})
                of_kind.setdefault(pid, []).append((sample.at_s, held.rss_bytes))
    return {
        kind: [
            (statistics.median(at for at, _ in each), statistics.median(rss for _, rss in each))
            for each in engines.values()
        ]
        for kind, engines in sorted(seen.items())
    }
