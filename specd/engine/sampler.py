"""Sampling: one row of logits → one token, by penalties, filters, temperature and shared noise.

All functions are pure.  Target and drafter run the same code with the same noise: so drafts are
likely to be accepted, and answers do not depend on the drafter (docs/speculation.md).
Filter order and meaning are llama.cpp's: penalties, top_k, typical_p, top_p, min_p, temperature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from specd.core import SamplingParams, TokenId, TokenLogprob, TopLogprob
from specd.engine.noise import gumbel, negative_gumbel, stream_key

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Piece = Callable[[TokenId], bytes]

#: Rows are cut into blocks of this many logits to bound the k-th best from below without sorting.
_BLOCK = 64
#: Shorter rows are searched whole, which takes fewer calls.
_LARGE = 4096
#: Up to this many candidates are handled one by one, more as arrays.
_FEW = 128
_LOWEST = np.finfo(np.float32).min
#: Margin of the only candidate; finite, so that JSON can hold it in a trace.
CERTAIN = 1e9
#: In place of a second-best token that does not exist.
NO_TOKEN: TokenId = -1


class NonFiniteLogits(Exception):
    """The best logit of a row is not finite: the weights are damaged, or the model overflowed."""

    def __init__(self) -> None:
        super().__init__(
            "the model computes no numbers (NaN or infinity): its weights are damaged,"
            " or its numbers are too large for the format of its cache"
        )


class Choice(NamedTuple):
    """A sampled token.  margin: best score minus second best, which predicts acceptance."""

    token: TokenId
    margin: float
    #: The token with the second-best score.
    second: TokenId = NO_TOKEN


class Sampler(Protocol):
    """The sampler of one request; it samples for target and drafter by the same rule."""

    @property
    def reads_history(self) -> bool:
        """Whether any penalty is on; without one, the history may be empty."""
        ...

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """Return the target's token at a position.  Raises NoAllowedToken, NonFiniteLogits."""
        ...

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        """Return a drafter's token at a position, with its margin.

        row: logits [n_vocab], left unchanged.  history: prompt and answer so far.
        position: index of the sampled token among the request's generated tokens, from 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class CoupledSampler:
    """A sampler whose noise depends on seed, position and token only, so both models share it.

    The token is argmax over the candidates of log p(v) + g(seed, t, v): an exact sample of p
    (Gumbel-max).  At temperature 0 it is the plain argmax.
    """

    params: SamplingParams
    #: Whether any penalty is on; computed once, not for each token.
    reads_history: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_history", has_penalties(self.params))

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """Return the token of sample() without its margin."""
        if self.params.temperature <= 0:
            penalized = penalize(row, history, self.params) if self.reads_history else row
            token = int(penalized.argmax())
        else:
            token = self.sample(row, history, position).token
        if not math.isfinite(row.item(token)):
            raise NonFiniteLogits
        return token

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        if self.reads_history:
            row = penalize(row, history, self.params)
        if self.params.temperature <= 0:
            return _greedy(row)
        if 0 < self.params.top_k <= _FEW and self.params.typical_p >= 1.0:
            return _draw_of_few(row, self.params, position)
        ids, logits = filter_candidates(row, self.params)
        if len(ids) == 1:
            return Choice(int(ids[0]), CERTAIN)
        scores = logits / self.params.temperature
        scores -= negative_gumbel(self.params.seed, position, ids)
        best = int(scores.argmax())
        top = scores[best]
        scores[best] = -np.inf
        second = int(scores.argmax())
        return Choice(int(ids[best]), float(top - scores[second]), int(ids[second]))


def _draw_of_few(row: Row, params: SamplingParams, position: int) -> Choice:
    """Sample with top_k, top_p and min_p in plain floats, as most requests do.

    An array call between two passes takes microseconds, since the CPU caches are cold.
    """
    ids, logits = (found.tolist() for found in top_k(row, params.top_k))
    if not ids:  # nothing is larger than NaN
        raise NonFiniteLogits
    n = _n_few(logits, params)
    if n == 1:
        return Choice(ids[0], CERTAIN)
    key = stream_key(params.seed, position)
    best, top, second, below = 0, -math.inf, 0, -math.inf
    for i in range(n):
        score = logits[i] / params.temperature + gumbel(key, ids[i])
        if score > top:
            best, top, second, below = i, score, best, top
        elif score > below:
            second, below = i, score
    return Choice(ids[best], top - below, ids[second])


def _n_few(logits: list[float], params: SamplingParams) -> int:
    """Return how many of the candidates, best first, top_p and min_p keep."""
    n, peak = len(logits), logits[0]
    if params.top_p < 1.0:
        weights = [math.exp(logit - peak) for logit in logits]
        wanted, mass = params.top_p * math.fsum(weights), 0.0
        for i, weight in enumerate(weights):
            mass += weight
            if mass >= wanted:
                n = i + 1
                break
    if params.min_p > 0.0:
        floor = peak + min(math.log(params.min_p), 0.0)
        while logits[n - 1] < floor:
            n -= 1
    return n


def _greedy(row: Row) -> Choice:
    best = int(row.argmax())
    top = float(row[best])
    if not math.isfinite(top):
        raise NonFiniteLogits
    # The runner-up without copying the row: the better of the best of both sides.
    sides = [int(row[:best].argmax())] if best else []
    if best + 1 < len(row):
        sides.append(best + 1 + int(row[best + 1 :].argmax()))
    if not sides:
        return Choice(best, CERTAIN)
    second = max(sides, key=row.__getitem__)
    margin = top - float(row[second])
    return Choice(best, margin, second if math.isfinite(margin) else NO_TOKEN)


def has_penalties(params: SamplingParams) -> bool:
    """Return whether any penalty is on."""
    neutral = (
        params.repeat_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )
    return not neutral and params.repeat_last_n != 0


def penalize(row: Row, history: Sequence[TokenId], params: SamplingParams) -> Row:
    """Return the row with penalties on the last `repeat_last_n` tokens (−1: all)."""
    if not history or not has_penalties(params):
        return row
    counts = penalty_counts(history, params.repeat_last_n)
    ids = np.fromiter((t for t in counts if t < len(row)), dtype=np.int64)
    times = np.fromiter((counts[int(t)] for t in ids), dtype=np.float32, count=len(ids))
    row = row.copy()
    seen = row[ids]
    scale = np.float32(params.repeat_penalty)
    seen = np.where(seen <= 0, seen * scale, seen / scale)
    row[ids] = seen - times * np.float32(params.frequency_penalty) - params.presence_penalty
    return row


def penalty_counts(history: Sequence[TokenId], last_n: int) -> Counter[TokenId]:
    """Return token → how often it is among the last `last_n` text tokens (< 0: all)."""
    return Counter(recent_text(history, last_n) if last_n > 0 else recent_text(history))


def recent_text(history: Sequence[TokenId], n: int | None = None) -> Sequence[TokenId]:
    """Return the last n tokens without images, whose ids are negative; None: all."""
    recent = history if n is None else history[-n:]
    if recent and min(recent) < 0:
        texts = [token for token in history if token >= 0]
        return texts if n is None else texts[-n:]
    return recent


def filter_candidates(row: Row, params: SamplingParams) -> tuple[Ids, Floats]:
    """Return the ids and logits (float64) that pass the filters.

    Raises NonFiniteLogits if there are none.
    """
    if params.top_k <= 0 and params.typical_p >= 1.0 and params.top_p >= 1.0:
        # min_p needs no order, and sorting a whole vocabulary is slow.
        ids, logits = np.arange(len(row)), row.astype(np.float64)
    else:
        ids, logits = top_k(row, params.top_k)
        if not len(ids):  # nothing is larger than NaN
            raise NonFiniteLogits
    if params.typical_p < 1.0:
        keep = kept_by_typical_p(logits, params.typical_p)
        ids, logits = ids[keep], logits[keep]
    if params.top_p < 1.0:
        n = n_kept_by_top_p(logits, params.top_p)
        ids, logits = ids[:n], logits[:n]
    if params.min_p > 0.0:
        keep = logits >= logits.max() + min(np.log(params.min_p), 0.0)
        ids, logits = ids[keep], logits[keep]
    return ids, logits


def top_k(row: Row, k: int) -> tuple[Ids, Floats]:
    """Return the k best ids and their logits, best first, ties by lower id; k ≤ 0: all.

    Ids at −inf may be left out, so that a row with few others is not sorted whole.

    A full sort of a 128k row costs milliseconds.  Each of the k best blocks holds at least one
    logit as large as the k-th best block maximum, so nothing below that bound can be among the k,
    and nothing outside of those blocks reaches it.
    """
    n_vocab = len(row)
    if k <= 0 or k >= n_vocab:
        candidates = np.arange(n_vocab)
    elif n_vocab < _LARGE or k > n_vocab // _BLOCK:
        candidates = (row >= _kth_best(row, k)).nonzero()[0]
    else:
        candidates = _in_best_blocks(row, k)
    logits = row[candidates].astype(np.float64)
    # The candidates are in order of id, and a stable sort keeps that order for equal logits.
    order = (-logits).argsort(kind="stable")
    if k > 0:
        order = order[:k]
    return candidates[order], logits[order]


def _in_best_blocks(row: Row, k: int) -> Ids:
    """Return the ids of at least the k best of a large row, ascending."""
    n_blocks = len(row) // _BLOCK
    whole = n_blocks * _BLOCK
    # A block is a column, since numpy is fastest at maxima over the rows of a matrix.
    blocks = row[:whole].reshape(_BLOCK, n_blocks)
    maxima = np.maximum.reduce(blocks, axis=0)
    bound = _kth_best(maxima, k)
    columns = (maxima >= bound).nonzero()[0]
    lines, places = (blocks.take(columns, axis=1) >= bound).nonzero()
    candidates: Ids = lines * n_blocks + columns[places]
    if whole < len(row):
        rest = (row[whole:] >= bound).nonzero()[0] + whole
        candidates = np.concatenate((candidates, rest))
    return candidates


def _kth_best(values: Row, k: int) -> np.float32:
    """Return the k-th best value, or the lowest finite one: a grammar excludes tokens by −inf."""
    values = values.copy()
    values.partition(len(values) - k)
    least: np.float32 = values[len(values) - k]
    return least if least > -np.inf else _LOWEST


def n_kept_by_top_p(sorted_logits: Floats, top_p: float) -> int:
    """Return the length of the shortest prefix whose mass reaches top_p (arXiv 1904.09751)."""
    mass = np.exp(sorted_logits - sorted_logits[0]).cumsum()
    return min(int(mass.searchsorted(top_p * mass[-1])) + 1, len(mass))


def kept_by_typical_p(logits: Floats, typical_p: float, min_keep: int = 0) -> Ids:
    """Return the indices kept by locally typical sampling (arXiv 2202.00666), best logit first."""
    weights = np.exp(logits - logits[0])
    probs = weights / weights.sum()
    surprise = -np.log(np.maximum(probs, 1e-300))
    entropy = float((probs * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    mass = np.cumsum(probs[order])
    n = min(int(np.searchsorted(mass, typical_p, side="left")) + 1, len(order))
    n = max(n, min_keep)
    return np.sort(order[:n])


def logprobs(row: Row, token: TokenId, n_top: int, piece: Piece) -> TokenLogprob:
    """Return the natural-log probabilities of the token and of the n_top best.

    They come from the row before penalties, filters, temperature and grammar, as in Ollama.
    """
    wide = row.astype(np.float64)
    peak = wide.max()
    log_total = float(peak + np.log(np.exp(wide - peak).sum()))
    top = tuple(
        TopLogprob(
            token=piece(int(i)).decode("utf-8", "replace"),
            bytes=tuple(piece(int(i))),
            logprob=float(wide[i]) - log_total,
        )
        for i in (top_k(row, n_top)[0] if n_top > 0 else ())
    )
    text = piece(token)
    return TokenLogprob(
        token=text.decode("utf-8", "replace"),
        bytes=tuple(text),
        logprob=float(wide[token]) - log_total,
        top=top,
    )
