"""Test with tens of thousands of draws that tokens follow the target's own probabilities.

One prompt is answered briefly under many seeds, with drafts, so that most tokens were drafted and
then verified.  Every token is a draw from the row after the tokens before it.  Each row is
requested once more, without speculation and sampling, and filtered here by the definition.  The
engine has one slot, because rows of wider batches round differently, and a token may then just miss
a filter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specd import core
from specd.bench.gguf_cache import open_gguf
from specd.bench.measure import Engine, ask, engine_process
from specd.bench.mode import Mode
from specd.bench.subject import Subject

PROMPT = "    def __init__(self, name"
#: Tokens of an answer: the prompt's pass gives the first, the others are drafted.
_N_TOKENS = 4
#: Concurrent requests for the one slot, so that it is never idle.
_N_WAITING = 4
_N_CTX = 128
#: Rows with fewer draws have no cell with a sufficient expected count.
_MIN_DRAWS = 30
#: With a lower expected count, a cell's statistic is not distributed as chi-square.
_MIN_EXPECTED = 5.0
#: More tokens than any filter keeps.
_N_LOGPROBS = 64
#: Bytes that the vocabulary writes as themselves; the others are written from U+0100 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))

Probabilities = npt.NDArray[np.float64]
Ids = tuple[core.TokenId, ...]
#: The end of the answer, for every end-of-generation token.
_END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCheck:
    """The result.

    n_draws: draws in the statistic, from n_rows rows.  n_drafted, n_accepted: of all answers.
    n_impossible: draws of tokens that the filters exclude; 0 is correct.
    """

    temperature: float
    n_draws: int
    n_rows: int
    n_drafted: int
    n_accepted: int
    n_impossible: int
    statistic: float
    n_free: int
    p_value: float


async def run_sampling_check(
    subject: Subject,
    temperature: float,
    n_draws: int,
    on_step: Callable[[int], None] = lambda _: None,
) -> SamplingCheck:
    """Return the result of at least `n_draws` draws.  on_step: receives their number so far.

    Raises LoadFailed, EngineError.
    """
    spec = core.EngineSpec(
        weights=str(subject.target),
        drafter=str(subject.drafter) if subject.drafter else None,
        n_ctx=_N_CTX,
        n_gpu_layers=0,
        n_threads=1,
        flash_attention=True,
    )
    async with engine_process(spec) as (engine, _):
        drawn = _Drawn(engine, temperature)
        while drawn.n_usable < n_draws:
            await drawn.more()
            on_step(drawn.n_usable)
        ids = token_ids(subject.target)
        rows = {
            before: counts
            for before, counts in drawn.counts.items()
            if counts.total() >= _MIN_DRAWS
        }
        expected = await _expected(engine, [*rows], temperature, ids)
    return _tested(drawn, rows, expected)


class _Drawn:
    """The answers so far.  counts: tokens before → token → number of draws."""

    def __init__(self, engine: Engine, temperature: float) -> None:
        self.counts: dict[Ids, Counter[int]] = {}
        self.n_drafted = self.n_accepted = 0
        self.temperature = temperature
        self._engine = engine
        self._seed = 0

    @property
    def n_usable(self) -> int:
        totals = (counts.total() for counts in self.counts.values())
        return sum(total for total in totals if total >= _MIN_DRAWS)

    async def more(self, n: int = 512) -> None:
        seeds = iter(range(self._seed, self._seed + n))
        self._seed += n

        async def work() -> None:
            for seed in seeds:
                self._add((await ask(self._engine, _request(self.temperature, seed))).done)

        await asyncio.gather(*(work() for _ in range(_N_WAITING)))

    def _add(self, done: core.Done) -> None:
        said = done.context[done.usage.n_prompt :]
        tokens = [*said, _END] if done.reason is core.StopReason.STOP else said
        for i, token in enumerate(tokens):
            self.counts.setdefault(said[:i], Counter())[token] += 1
        self.n_drafted += done.speculation.draft_n
        self.n_accepted += done.speculation.draft_n_accepted


def _request(temperature: float, seed: int) -> core.EngineRequest:
    return Mode.fixed(_N_TOKENS - 1).applied(
        core.EngineRequest(
            prompt=(PROMPT,),
            sampling=core.SamplingParams(temperature=temperature, seed=seed),
            n_predict=_N_TOKENS,
            shift=False,
            want_context=True,
        )
    )


# --------------------------------------------------------------------------- what should come


async def _expected(
    engine: Engine, rows: Sequence[Ids], temperature: float, ids: Mapping[bytes, int]
) -> dict[Ids, dict[int, float]]:
    """Return the probabilities of the next tokens by row.

    A row is left out if its best token ends the text: such an answer has no logprobs.
    """
    sampling = core.SamplingParams(temperature=temperature)
    found = {}
    for before in rows:
        request = core.EngineRequest(
            prompt=(PROMPT, *before),
            sampling=core.SamplingParams(temperature=0.0),
            n_predict=1,
            n_logprobs=_N_LOGPROBS,
            n_draft_max=0,
            shift=False,
        )
        for said in (await ask(engine, request)).logprobs[:1]:
            logprobs = np.array([each.logprob for each in said.top])
            tokens = (ids.get(bytes(each.bytes), _END) for each in said.top)
            kept = filtered(logprobs, sampling)
            found[before] = _added(zip(tokens, kept.tolist(), strict=False))
    return found


def _added(probs: Iterator[tuple[int, float]]) -> dict[int, float]:
    added: dict[int, float] = {}
    for token, prob in probs:
        added[token] = added.get(token, 0.0) + prob
    return added


def filtered(logprobs: Probabilities, sampling: core.SamplingParams) -> Probabilities:
    """Return the probabilities after top-k, then top-p, then temperature, best token first.

    Written from the definition, not as the engine computes it.
    """
    best = logprobs[: sampling.top_k]
    probs = np.exp(best) / np.exp(best).sum()
    n_kept = int(np.searchsorted(np.cumsum(probs), sampling.top_p)) + 1
    powers = probs[:n_kept] ** (1.0 / sampling.temperature)
    return np.asarray(powers / powers.sum(), dtype=np.float64)


# --------------------------------------------------------------------------- the statistic


def _tested(
    drawn: _Drawn,
    rows: Mapping[Ids, Counter[int]],
    expected: Mapping[Ids, Mapping[int, float]],
) -> SamplingCheck:
    parts = [chi_square(rows[before], probs) for before, probs in expected.items()]
    statistic, n_free = sum(part[0] for part in parts), sum(part[1] for part in parts)
    impossible = sum(
        count
        for before, probs in expected.items()
        for token, count in rows[before].items()
        if token not in probs
    )
    return SamplingCheck(
        temperature=drawn.temperature,
        n_draws=sum(rows[before].total() for before in expected),
        n_rows=len(expected),
        n_drafted=drawn.n_drafted,
        n_accepted=drawn.n_accepted,
        n_impossible=impossible,
        statistic=statistic,
        n_free=n_free,
        p_value=0.0 if impossible else p_value(statistic, n_free),
    )


def chi_square(counts: Counter[int], probs: Mapping[int, float]) -> tuple[float, int]:
    """Return the statistic of one row and its degrees of freedom; rare tokens share a cell."""
    n = counts.total()
    cells = [(counts[token], n * prob) for token, prob in probs.items()]
    frequent = [cell for cell in cells if cell[1] >= _MIN_EXPECTED]
    rare = [cell for cell in cells if cell[1] < _MIN_EXPECTED]
    if rare:
        frequent.append((sum(c for c, _ in rare), sum(e for _, e in rare)))
        frequent.sort(key=lambda cell: cell[1])
        if frequent[0][1] < _MIN_EXPECTED and len(frequent) > 1:
            (c, e), (d, f), *others = frequent
            frequent = [(c + d, e + f), *others]
    return sum((c - e) ** 2 / e for c, e in frequent), len(frequent) - 1


def p_value(statistic: float, n_free: int) -> float:
    """Return the probability of such a statistic or a larger one by chance alone."""
    from scipy import stats  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra, slow

    return float(stats.chi2.sf(statistic, n_free)) if n_free else 1.0


# --------------------------------------------------------------------------- the vocabulary


def token_ids(file: Path) -> dict[bytes, int]:
    """Return bytes → token, without control tokens and others that are not plain text.

    Raises StoreError for a file that is not a GGUF.
    """
    tokens = open_gguf(file).get_field("tokenizer.ggml.tokens").contents()
    spelled = _spelled()
    return {
        bytes(spelled[letter] for letter in token): i
        for i, token in enumerate(tokens)
        if spelled.keys() >= set(token) and not token.startswith("<|")
    }


def _spelled() -> dict[str, int]:
    """Return letter → byte."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    letters = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return letters | {chr(byte): byte for byte in _PRINTABLE}
