"""One row of logits → one token: penalties, filters, temperature and shared noise.

Pure functions.  Target and drafter run the very same code with the very same noise, which is what
makes a draft likely to be accepted and an answer independent of the drafter (docs/speculation.md).
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
#: Rows shorter than this are searched whole: that takes fewer calls.
_LARGE = 4096
#: Up to so many candidates are drawn from one by one, more of them as arrays.
_FEW = 128
_LOWEST = np.finfo(np.float32).min
#: The margin of a token that no other competes with; finite, so that a trace can be written down.
CERTAIN = 1e9
#: In place of a second-best token that does not exist.
NO_TOKEN: TokenId = -1


class NonFiniteLogits(Exception):
    """The row holds no finite logit to choose: the weights are damaged, or the model overflowed."""

    def __init__(self) -> None:
        super().__init__(
            "the model computes no numbers (NaN or infinity): its weights are damaged,"
            " or its numbers are too large for the format of its cache"
        )


class Choice(NamedTuple):
    """margin: best score minus second best (CERTAIN where one is left); it predicts acceptance.

    second: the token with the second-best score; NO_TOKEN if only one is left.
    """

    token: TokenId
    margin: float
    second: TokenId = NO_TOKEN


class Sampler(Protocol):
    """Draws for target and drafter by the same rule; one request's own."""

    @property
    def reads_history(self) -> bool:
        """Whether any penalty is on; without one the history may be left out."""
        ...

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """Return the token that the target says at a position.

        Raises NoAllowedToken where no token is allowed, NonFiniteLogits
        where the row is not to be used.
        """
        ...

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        """A drafter's token at a position, and how sure it is.

        row: logits [n_vocab], left unchanged.  history: prompt and answer so far.
        position: index of the drawn token among the request's generated tokens, from 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class CoupledSampler:
    """Draws position t of a request from target's or drafter's row, with one noise for both.

    The token is argmax over the candidates of log p(v) + g(seed, t, v): an exact sample of p
    (Gumbel-max); at temperature 0 it is the plain argmax.
    """

    params: SamplingParams
    #: Whether any penalty is on; asked once, not token by token.
    reads_history: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_history", has_penalties(self.params))

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """What sample() draws, without asking how sure it is."""
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
    """The usual request, in plain floats: top_k, top_p, min_p, then noise for what is left.

    Between two passes the caches are cold and an array call takes microseconds; a dozen survivors
    are cheaper one by one.
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
    """How many of the candidates, best first, top_p and min_p keep."""
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
    neutral = (
        params.repeat_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )
    return not neutral and params.repeat_last_n != 0


def penalize(row: Row, history: Sequence[TokenId], params: SamplingParams) -> Row:
    """Repeat, presence and frequency penalties over the last `repeat_last_n` tokens (−1: all)."""
    if not history or not has_penalties(params):
        return row
    recent = history[-params.repeat_last_n :] if params.repeat_last_n > 0 else history
    if min(recent) < 0:
        # Where an image stands nothing was said.
        words = [token for token in history if token >= 0]
        recent = words[-params.repeat_last_n :] if params.repeat_last_n > 0 else words
    counts = Counter(recent)
    ids = np.fromiter((t for t in counts if t < len(row)), dtype=np.int64)
    times = np.fromiter((counts[int(t)] for t in ids), dtype=np.float32, count=len(ids))
    row = row.copy()
    seen = row[ids]
    scale = np.float32(params.repeat_penalty)
    seen = np.where(seen <= 0, seen * scale, seen / scale)
    row[ids] = seen - times * np.float32(params.frequency_penalty) - params.presence_penalty
    return row


def filter_candidates(row: Row, params: SamplingParams) -> tuple[Ids, Floats]:
    """Ids and logits (float64) that survive the filters.  NonFiniteLogits where there are none."""
    if params.top_k <= 0 and params.typical_p >= 1.0 and params.top_p >= 1.0:
        # Nothing below needs an order, and sorting a whole vocabulary is slow.
        ids, logits = np.arange(len(row)), row.astype(np.float64)
    else:
        ids, logits = top_k(row, params.top_k)
        if not len(ids):  # nothing is larger than NaN
            raise NonFiniteLogits
    if params.typical_p < 1.0:
        keep = _typical(logits, params.typical_p)
        ids, logits = ids[keep], logits[keep]
    if params.top_p < 1.0:
        n = _n_top_p(logits, params.top_p)
        ids, logits = ids[:n], logits[:n]
    if params.min_p > 0.0:
        keep = logits >= logits.max() + min(np.log(params.min_p), 0.0)
        ids, logits = ids[keep], logits[keep]
    return ids, logits


def top_k(row: Row, k: int) -> tuple[Ids, Floats]:
    """The k best ids and their logits, best first, ties by lower id; k ≤ 0 is all of them.

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
    # Stable on descending logits, and the candidates ascend: equal ones stay in order of their ids.
    order = (-logits).argsort(kind="stable")
    if k > 0:
        order = order[:k]
    return candidates[order], logits[order]


def _in_best_blocks(row: Row, k: int) -> Ids:
    """Ids of at least the k best of a large row, ascending."""
    n_blocks = len(row) // _BLOCK
    whole = n_blocks * _BLOCK
    # A block is a column: maxima over the rows of a matrix are what numpy does fastest.
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
    """The k-th best value, or the lowest finite one: −inf is what a grammar excludes."""
    values = values.copy()
    values.partition(len(values) - k)
    least: np.float32 = values[len(values) - k]
    return least if least > -np.inf else _LOWEST


def _n_top_p(sorted_logits: Floats, top_p: float) -> int:
    """Length of the shortest prefix whose mass reaches top_p (arXiv 1904.09751)."""
    mass = np.exp(sorted_logits - sorted_logits[0]).cumsum()
    return min(int(mass.searchsorted(top_p * mass[-1])) + 1, len(mass))


def _typical(logits: Floats, typical_p: float) -> Ids:
    """Indices kept by locally typical sampling (arXiv 2202.00666), best logit first."""
    weights = np.exp(logits - logits[0])
    probs = weights / weights.sum()
    surprise = -np.log(np.maximum(probs, 1e-300))
    entropy = float((probs * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    mass = np.cumsum(probs[order])
    n = min(int(np.searchsorted(mass, typical_p, side="left")) + 1, len(order))
    return np.sort(order[:n])


def logprobs(row: Row, token: TokenId, n_top: int, piece: Piece) -> TokenLogprob:
    """Natural-log probability of the token and of the n_top best, from the unfiltered row.

    That is before penalties, filters, temperature and grammar, as Ollama's are: a token that a
    grammar forced on the model shows how little the model thought of it.
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
