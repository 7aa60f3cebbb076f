"""The measurements of answers, in one form for specd and peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from specd import core
from specd.bench.mode import Mode


class PeerAnswer(Protocol):
    """The measurements of a peer's answer; generate_ns begins with the first token."""

    @property
    def text(self) -> str: ...
    @property
    def n_generated(self) -> int: ...
    @property
    def generate_ns(self) -> int: ...
    @property
    def n_drafted(self) -> int: ...
    @property
    def n_accepted(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_prompt(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The measurements of one answer, or of simultaneous answers, one per stream.

    prompt: number of the prompt in the workload; with several streams, of the group.
    repeat: number of the bench's repetition.
    texts: the answers, one per stream.
    seconds: with one stream the server's time from the first token on, which covers n_timed =
    n_generated − 1 tokens; with several streams wall time, prompts and all tokens included.
    native_s: the part of `seconds` spent in target passes; None where unknown.
    n_looked_up: the part of n_drafted that prompt lookup found.
    """

    workload: str
    temperature: float
    prompt: int
    mode: Mode
    streams: int = 1
    repeat: int = 0
    texts: tuple[str, ...] = ("",)
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int
    n_timed: int
    seconds: float
    native_s: float | None = None
    n_drafted: int = 0
    n_accepted: int = 0
    n_looked_up: int = 0
    n_looked_up_accepted: int = 0
    rounds: int = 0
    n_steps: int = 0
    drafted_per_depth: tuple[int, ...] = ()
    accepted_per_depth: tuple[int, ...] = ()
    state: str = ""
    reason: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second; 0 where nothing was timed."""
        return self.n_timed / self.seconds if self.seconds > 0 else 0.0

    @property
    def overhead_ms(self) -> float | None:
        """Milliseconds per token outside of target passes; None where unknown."""
        if self.native_s is None or self.n_timed <= 0:
            return None
        return (self.seconds - self.native_s) / self.n_timed * 1e3


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the engine or of a peer."""

    text: str
    usage: core.Usage
    speculation: core.SpeculationStats

    @classmethod
    def of_peer(cls, answer: PeerAnswer) -> Self:
        return cls(
            answer.text,
            core.Usage(
                n_prompt=answer.n_prompt,
                n_cached=answer.n_cached,
                n_generated=answer.n_generated,
                generate_ns=answer.generate_ns,
            ),
            core.SpeculationStats(draft_n=answer.n_drafted, draft_n_accepted=answer.n_accepted),
        )


def combine_answers(
    answers: Sequence[Answer],
    *,
    workload: str,
    temperature: float,
    prompt: int,
    repeat: int,
    mode: Mode,
    wall_s: float,
) -> Run:
    """Return the run of simultaneous answers."""
    usages = [answer.usage for answer in answers]
    stats = [answer.speculation for answer in answers]
    n_generated = sum(usage.n_generated for usage in usages)
    alone = len(answers) == 1
    return Run(
        workload=workload,
        temperature=temperature,
        prompt=prompt,
        mode=mode,
        streams=len(answers),
        repeat=repeat,
        texts=tuple(answer.text for answer in answers),
        n_prompt=sum(usage.n_prompt for usage in usages),
        n_cached=sum(usage.n_cached for usage in usages),
        n_generated=n_generated,
        n_timed=max(n_generated - 1, 0) if alone else n_generated,
        seconds=usages[0].generate_ns * 1e-9 if alone else wall_s,
        native_s=usages[0].native_ns * 1e-9 if alone and usages[0].native_ns else None,
        n_drafted=sum(each.draft_n for each in stats),
        n_accepted=sum(each.draft_n_accepted for each in stats),
        n_looked_up=sum(each.lookup_n for each in stats),
        n_looked_up_accepted=sum(each.lookup_n_accepted for each in stats),
        rounds=sum(each.rounds for each in stats),
        n_steps=sum(each.n_steps for each in stats),
        drafted_per_depth=sum_depths([each.drafted_per_depth for each in stats]),
        accepted_per_depth=sum_depths([each.accepted_per_depth for each in stats]),
        state="" if mode.is_peer else _join({str(each.state) for each in stats}),
        reason=_join({each.reason for each in stats}),
    )


def sum_depths(depths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums by depth; shorter sequences count as 0 beyond their ends."""
    longest = max(map(len, depths), default=0)
    return tuple(sum(each[i] for each in depths if i < len(each)) for i in range(longest))


def _join(words: set[str]) -> str:
    return ", ".join(sorted(words - {""}))
