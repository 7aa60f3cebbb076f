"""Run the measurements of the ten targets, one after the other: `make bench`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.targets.findings import Findings
from benchmarks.targets.output_equality import OutputEquality, sameness
from benchmarks.targets.round_time import RoundTime, round_times
from benchmarks.targets.sampling_check import SamplingCheck, run_sampling_check
from benchmarks.targets.second_turn import second_turns
from benchmarks.targets.speed_targets import PEER_DEFAULT
from benchmarks.targets.wide_vocabulary import wide_vocabulary_pair
from specd.bench import peer_binary
from specd.bench.config import BenchConfig
from specd.bench.schedule import RunSet
from specd.bench.session import BenchStep, run_bench
from specd.bench.subject import Subject, demo_subject
from specd.bench.workload import HOSTILE
from specd.errors import InvalidRequest
from specd.settings import Settings

STREAMS = (4, 8)
#: The usual temperature; there is no time for another one.
_STREAM_TEMPERATURE = 0.8
#: Two groups of each number of streams, so that no prompt finds itself in the cache.
_N_GROUPS = 2
DRAW_TEMPERATURES = (0.8, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """The sizes of the measurements without a workload.  estimate_s: on two idle cores."""

    n_stream_tokens: int
    n_rounds: int
    n_round_tokens: int
    n_same: int
    n_same_tokens: int
    n_draws: int
    estimate_s: float


#: The sizes that the targets require.
FULL = SampleSizes(
    n_stream_tokens=32,
    n_rounds=4,
    n_round_tokens=160,
    n_same=200,
    n_same_tokens=128,
    n_draws=50_000,
    estimate_s=110.0,
)
#: Enough to see that everything works; some targets fail with so little data.
QUICK = SampleSizes(
    n_stream_tokens=16,
    n_rounds=1,
    n_round_tokens=80,
    n_same=12,
    n_same_tokens=48,
    n_draws=2_000,
    estimate_s=20.0,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Seconds of work done and expected in all.  words: what is running."""

    words: str
    done_s: float
    total_s: float


async def run_targets(
    config: BenchConfig,
    settings: Settings,
    subject: Subject,
    sample_sizes: SampleSizes,
    commands: tuple[str, ...],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Findings:
    """Measure speed on `subject`, the padded demo pair, and the rest on the demo pair itself.

    Raises LoadFailed, EngineError, InvalidRequest, StoreError.
    """
    progress_tracker = _ProgressTracker(sample_sizes.estimate_s, on_progress)
    run_sets = [*config.run_sets(subject), *stream_run_sets(config, subject, sample_sizes)]
    report = await run_bench(config, subject, settings, progress_tracker.of_bench, run_sets)
    demo = demo_subject()
    progress_tracker.begin("second turns")
    turns = await second_turns(demo)
    pair = await asyncio.to_thread(wide_vocabulary_pair, demo.target)
    progress_tracker.begin("time per round, vocabulary of 128k")
    rounds = await round_times(
        pair, sample_sizes.n_rounds, sample_sizes.n_round_tokens, progress_tracker.of_rounds
    )
    progress_tracker.begin("the same text with and without drafts")
    same = await _sameness(demo, sample_sizes, progress_tracker)
    progress_tracker.begin("draws against probabilities")
    draws = await _draws(demo, sample_sizes, progress_tracker)
    return Findings(
        report=report,
        commands=commands,
        llama_commit=await asyncio.to_thread(peer_binary.engine_commit),
        rounds=tuple(rounds),
        sameness=tuple(same),
        draws=tuple(draws),
        second_turns=tuple(turns),
    )


def stream_run_sets(
    config: BenchConfig, subject: Subject, sample_sizes: SampleSizes
) -> list[RunSet]:
    """Return run sets for several streams: plain, auto, and the peer plain and with its default
    draft.
    """
    names = [name for name in config.workloads if name != HOSTILE]
    if not names:
        raise InvalidRequest(f"the targets need more workloads than {HOSTILE}")
    found: list[RunSet] = []
    for streams in STREAMS:
        part = replace(
            config,
            workloads=names,
            streams=(streams,),
            n_prompts=-(-_N_GROUPS * streams // len(names)),
            n_repeats=1,
            n_tokens=sample_sizes.n_stream_tokens,
            temperatures=(_STREAM_TEMPERATURE,),
            draft_lengths=(),
            peer_lengths=(PEER_DEFAULT.n_draft,),
            each_drafter=False,
        )
        found += part.run_sets(subject)
    return found


async def _sameness(
    demo: Subject, sample_sizes: SampleSizes, progress_tracker: _ProgressTracker
) -> Sequence[OutputEquality]:
    return await sameness(
        demo,
        sample_sizes.n_same,
        sample_sizes.n_same_tokens,
        lambda: progress_tracker.part(0.35 / sample_sizes.n_same),
    )


async def _draws(
    demo: Subject, sample_sizes: SampleSizes, progress_tracker: _ProgressTracker
) -> Sequence[SamplingCheck]:
    """Run both temperatures at once, on a core each."""
    n_all = sample_sizes.n_draws
    n_done = dict.fromkeys(DRAW_TEMPERATURES, 0)

    def on_step(temperature: float, n: int) -> None:
        n_new = min(n, n_all) - n_done[temperature]
        n_done[temperature] += n_new
        progress_tracker.part(0.45 / len(DRAW_TEMPERATURES) * n_new / n_all)

    return await asyncio.gather(
        *(run_sampling_check(demo, t, n_all, partial(on_step, t)) for t in DRAW_TEMPERATURES)
    )


class _ProgressTracker:
    """Combines the progress of all measurements into one."""

    def __init__(self, others_s: float, on_progress: Callable[[Progress], None]) -> None:
        self._others_s = others_s
        self._on_progress = on_progress
        self._words = "loading"
        self._done_s = self._total_s = 0.0

    def of_bench(self, step: BenchStep) -> None:
        if step.run is None:
            self._words, self._total_s = "warming up", step.total_s + self._others_s
        else:
            streams = f", {step.run.streams} streams" if step.run.streams > 1 else ""
            self._words = (
                f"{step.run.workload}, {step.run.mode.name} at {step.run.temperature:g}{streams}"
            )
        self._done_s = step.done_s
        self._report_progress()

    def of_rounds(self, _: RoundTime) -> None:
        self.part(0.2 / 8)

    def begin(self, words: str) -> None:
        self._words = words
        self._report_progress()

    def part(self, share: float) -> None:
        """Add a share of the measurements without a workload."""
        self._done_s += share * self._others_s
        self._report_progress()

    def _report_progress(self) -> None:
        self._on_progress(Progress(self._words, self._done_s, self._total_s))
