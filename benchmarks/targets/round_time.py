"""Measure the time of a round outside of the models' passes, with a very large vocabulary."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd import core
from specd.bench.measure import Engine, EngineReply, ask, engine_process
from specd.bench.mode import AUTO, Mode
from specd.bench.runs import MedianRange

#: A busy home server has up to eight requests at a time.
SLOTS = (1, 8)
TEMPERATURES = (0.0, 0.8)
_MODES = (AUTO, Mode.fixed(3))
_N_CTX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTime:
    """The time of a round.

    overhead_ms: of a round that all slots share, outside of llama.cpp; one figure per request.
    round_ms, tokens_per_round: medians over the requests; tokens are those of one slot.
    """

    slots: int
    temperature: float
    mode: str
    overhead_ms: MedianRange
    round_ms: float
    tokens_per_round: float
    n_vocab: int
    n_requests: int


async def round_times(
    pair: tuple[Path, Path],
    n_requests: int,
    n_tokens: int,
    on_step: Callable[[RoundTime], None] = lambda _: None,
) -> list[RoundTime]:
    """Return a figure for every mode, temperature and number of slots.

    n_requests: how often all slots are filled.  The engine has one thread, which leaves a core to
    the receiver of the tokens, as in a daemon with a GPU.  Raises LoadFailed, EngineError.
    """
    found = []
    for slots in SLOTS:
        spec = core.EngineSpec(
            weights=str(pair[0]),
            drafter=str(pair[1]),
            n_ctx=_N_CTX,
            n_slots=slots,
            n_gpu_layers=0,
            n_threads=1,
        )
        async with engine_process(spec) as (engine, facts):
            for temperature in TEMPERATURES:
                for mode in _MODES:
                    replies = await _asked(engine, mode, temperature, slots, n_requests, n_tokens)
                    time = _round_time(replies, mode, temperature, slots, facts.n_vocab)
                    found.append(time)
                    on_step(time)
    return found


async def _asked(
    engine: Engine, mode: Mode, temperature: float, slots: int, n_requests: int, n_tokens: int
) -> list[EngineReply]:
    """Fill all slots n_requests times, after one time that does not count; return the replies."""
    replies: list[EngineReply] = []
    for turn in range(n_requests + 1):
        together = await asyncio.gather(
            *(
                ask(engine, _request(mode, temperature, turn, slot, n_tokens))
                for slot in range(slots)
            )
        )
        replies += together if turn else []
    return replies


def _request(
    mode: Mode, temperature: float, turn: int, slot: int, n_tokens: int
) -> core.EngineRequest:
    return mode.applied(
        core.EngineRequest(
            # All prompts begin differently, so that no slot finds another one's cache.
            prompt=(f"{slot}.{turn} def f(",),
            sampling=core.SamplingParams(temperature=temperature, seed=1 + turn),
            n_predict=n_tokens,
            shift=False,
        )
    )


def _round_time(
    replies: Sequence[EngineReply], mode: Mode, temperature: float, slots: int, n_vocab: int
) -> RoundTime:
    done = [reply.done for reply in replies if reply.done.speculation.n_steps]
    rounds = [(each.usage, each.speculation.n_steps) for each in done]
    overhead = MedianRange.of((u.generate_ns - u.native_ns) / n * 1e-6 for u, n in rounds)
    assert overhead is not None
    return RoundTime(
        slots=slots,
        temperature=temperature,
        mode=mode.name,
        overhead_ms=overhead,
        round_ms=statistics.median(u.generate_ns / n * 1e-6 for u, n in rounds),
        tokens_per_round=statistics.median((u.n_generated - 1) / n for u, n in rounds),
        n_vocab=n_vocab,
        n_requests=len(replies),
    )
