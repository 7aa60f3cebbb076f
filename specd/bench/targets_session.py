"""The measurements behind the ten targets, one after the other: what `make bench` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specd.bench import peer_build
from specd.bench.draws import DrawTest, draw_test
from specd.bench.findings import Findings
from specd.bench.plan import Leg
from specd.bench.question import Question
from specd.bench.round_time import RoundTime, round_times
from specd.bench.sameness import Sameness, sameness
from specd.bench.second_turn import second_turns
from specd.bench.session import Step, run_bench
from specd.bench.subject import Subject, demo_subject
from specd.bench.targets_speed import PEER_DEFAULT
from specd.bench.wide_vocabulary import wide_vocabulary_pair
from specd.bench.workload import HOSTILE
from specd.errors import InvalidRequest
from specd.settings import Settings

STREAMS = (4, 8)
#: The temperature that people use; the minutes do not allow another.
_STREAM_TEMPERATURE = 0.8
#: Two groups of each number of streams, so that neither meets its own cache.
_N_GROUPS = 2
DRAW_TEMPERATURES = (0.8, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of everything that is no workload.  estimate_s: about, on two quiet cores."""

    n_stream_tokens: int
    n_rounds: int
    n_round_tokens: int
    n_same: int
    n_same_tokens: int
    n_draws: int
    estimate_s: float


#: What the targets demand.
FULL = Extent(
    n_stream_tokens=32,
    n_rounds=4,
    n_round_tokens=160,
    n_same=200,
    n_same_tokens=128,
    n_draws=50_000,
    estimate_s=110.0,
)
#: Enough to see that everything works; some targets fail for being shown too little.
QUICK = Extent(
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
    """Seconds of work done and expected in all; words: what is done now."""

    words: str
    done_s: float
    total_s: float


async def run_targets(
    question: Question,
    settings: Settings,
    subject: Subject,
    extent: Extent,
    commands: tuple[str, ...],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Findings:
    """Speed on `subject`, the demo pair made large; all that needs no size on the demo itself.

    LoadFailed, EngineError, InvalidRequest, StoreError.
    """
    ledger = _Ledger(extent.estimate_s, on_progress)
    legs = [*question.legs(subject), *stream_legs(question, subject, extent)]
    report = await run_bench(question, subject, settings, ledger.of_bench, legs)
    demo = demo_subject()
    ledger.begin("second turns")
    turns = await second_turns(demo)
    pair = await asyncio.to_thread(wide_vocabulary_pair, demo.target)
    ledger.begin("time per round, vocabulary of 128k")
    rounds = await round_times(pair, extent.n_rounds, extent.n_round_tokens, ledger.of_rounds)
    ledger.begin("the same text with and without drafts")
    same = await _sameness(demo, extent, ledger)
    ledger.begin("draws against probabilities")
    draws = await _draws(demo, extent, ledger)
    return Findings(
        report=report,
        commands=commands,
        llama_commit=await asyncio.to_thread(peer_build.engine_commit),
        rounds=tuple(rounds),
        sameness=tuple(same),
        draws=tuple(draws),
        second_turns=tuple(turns),
    )


def stream_legs(question: Question, subject: Subject, extent: Extent) -> list[Leg]:
    """Plain and auto, and the peer without a draft and with its default one."""
    names = [name for name in question.workloads if name != HOSTILE]
    if not names:
        raise InvalidRequest(f"the targets need more workloads than {HOSTILE}")
    found: list[Leg] = []
    for streams in STREAMS:
        part = replace(
            question,
            workloads=names,
            streams=(streams,),
            n_prompts=-(-_N_GROUPS * streams // len(names)),
            n_repeats=1,
            n_tokens=extent.n_stream_tokens,
            temperatures=(_STREAM_TEMPERATURE,),
            draft_lengths=(),
            peer_lengths=(PEER_DEFAULT.n_draft,),
            each_drafter=False,
        )
        found += part.legs(subject)
    return found


async def _sameness(demo: Subject, extent: Extent, ledger: _Ledger) -> Sequence[Sameness]:
    return await sameness(
        demo, extent.n_same, extent.n_same_tokens, lambda: ledger.part(0.35 / extent.n_same)
    )


async def _draws(demo: Subject, extent: Extent, ledger: _Ledger) -> Sequence[DrawTest]:
    """Both temperatures at once, a core each."""
    share = 0.45 / len(DRAW_TEMPERATURES)

    def heard() -> Callable[[int], None]:
        known = 0

        def hear(n: int) -> None:
            nonlocal known
            ledger.part(share * (min(n, extent.n_draws) - known) / extent.n_draws)
            known = min(n, extent.n_draws)

        return hear

    return await asyncio.gather(
        *(draw_test(demo, each, extent.n_draws, heard()) for each in DRAW_TEMPERATURES)
    )


class _Ledger:
    """Turns what each measurement says of itself into one progress."""

    def __init__(self, others_s: float, on_progress: Callable[[Progress], None]) -> None:
        self._others_s = others_s
        self._on_progress = on_progress
        self._words = "loading"
        self._done_s = self._total_s = 0.0

    def of_bench(self, step: Step) -> None:
        if step.run is None:
            self._words, self._total_s = "warming up", step.total_s + self._others_s
        else:
            streams = f", {step.run.streams} streams" if step.run.streams > 1 else ""
            self._words = (
                f"{step.run.workload}, {step.run.mode.name} at {step.run.temperature:g}{streams}"
            )
        self._done_s = step.done_s
        self._tell()

    def of_rounds(self, _: RoundTime) -> None:
        self.part(0.2 / 8)

    def begin(self, words: str) -> None:
        self._words = words
        self._tell()

    def part(self, share: float) -> None:
        """Of what is no workload."""
        self._done_s += share * self._others_s
        self._tell()

    def _tell(self) -> None:
        self._on_progress(Progress(self._words, self._done_s, self._total_s))
