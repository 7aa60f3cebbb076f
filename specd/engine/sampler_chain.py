"""Sampling with llama-server's stages in any order: penalties, DRY, filters, temperature.

Stages, defaults and rules are llama.cpp's (src/llama-sampler.cpp).  Every stage is a pure function
of the row, the history, the seed and the position, so target and drafter filter alike, and answers
do not depend on drafts (docs/speculation.md).  The usual order has a faster sampler:
`CoupledSampler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from specd.core import SamplerChain, SamplerStage, SamplingParams, TokenId
from specd.engine.dry import dry_penalties, is_dry_on
from specd.engine.noise import negative_gumbel, uniform
from specd.engine.sampler import (
    CERTAIN,
    Choice,
    Floats,
    Ids,
    NonFiniteLogits,
    Row,
    has_penalties,
    kept_by_typical_p,
    n_kept_by_top_p,
    penalty_counts,
)

#: In place of a token's id in the noise that decides whether XTC applies; no vocabulary has it.
_XTC_DRAW: Final = np.array([-1], dtype=np.int64)


class Candidates(NamedTuple):
    """Tokens that may be sampled, and their logits.  is_sorted: best first, ties by lower id."""

    ids: Ids
    logits: Floats
    is_sorted: bool = False

    def sorted(self) -> Candidates:
        if self.is_sorted:
            return self
        order = (-self.logits).argsort(kind="stable")
        return Candidates(self.ids[order], self.logits[order], is_sorted=True)

    def first(self, n: int) -> Candidates:
        return Candidates(self.ids[:n], self.logits[:n], self.is_sorted)

    def with_logits(self, logits: Floats, *, is_sorted: bool) -> Candidates:
        return Candidates(self.ids, logits, is_sorted)


class _Step(NamedTuple):
    """What a stage may depend on, besides the candidates."""

    params: SamplingParams
    chain: SamplerChain
    history: Sequence[TokenId]
    position: int


@dataclass(frozen=True, slots=True)
class ChainSampler:
    """A sampler that runs the stages of a chain, with the noise of `CoupledSampler`."""

    params: SamplingParams
    chain: SamplerChain

    @property
    def reads_history(self) -> bool:
        stages = self.chain.stages
        return (SamplerStage.DRY in stages and is_dry_on(self.chain)) or (
            SamplerStage.PENALTIES in stages and has_penalties(self.params)
        )

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        """Return the token of sample().  Raises NonFiniteLogits."""
        token = self.sample(row, history, position).token
        if not math.isfinite(row.item(token)):
            raise NonFiniteLogits
        return token

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        ids, logits, _ = self.candidates(row, history, position)
        if len(ids) == 1:
            return Choice(int(ids[0]), CERTAIN)
        scores = logits - negative_gumbel(self.params.seed, position, ids)
        best = int(scores.argmax())
        top = float(scores[best])
        scores[best] = -np.inf
        second = int(scores.argmax())
        margin = min(top - float(scores[second]), CERTAIN)
        return Choice(int(ids[best]), margin, int(ids[second]))

    def candidates(self, row: Row, history: Sequence[TokenId], position: int) -> Candidates:
        """Return the candidates after all stages; the softmax of their logits is sampled.

        The arguments are those of `Sampler.sample`.  Raises NonFiniteLogits, also if `logit_bias`
        forbids all tokens.
        """
        step = _Step(self.params, self.chain, history, position)
        found = Candidates(np.arange(len(row)), _biased(row, self.chain))
        if not math.isfinite(found.logits.max()):
            raise NonFiniteLogits
        for stage in self.chain.stages:
            found = _STAGES[stage](found, step)
        possible = found.logits > -np.inf
        return Candidates(found.ids[possible], found.logits[possible], found.is_sorted)


def _biased(row: Row, chain: SamplerChain) -> Floats:
    logits = row.astype(np.float64)
    for token, bias in chain.logit_bias:
        if 0 <= token < len(logits):
            logits[token] += bias
    return logits


def _softmax(logits: Floats) -> Floats:
    weights: Floats = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


# --------------------------------------------------------------------------- stages


def _penalties(found: Candidates, step: _Step) -> Candidates:
    params = step.params
    if not has_penalties(params) or not step.history:
        return found
    counts = penalty_counts(step.history, params.repeat_last_n)
    times = np.fromiter((counts.get(int(i), 0) for i in found.ids), np.float64, len(found.ids))
    logits, scale = found.logits, params.repeat_penalty
    penalized = np.where(logits <= 0, logits * scale, logits / scale)
    penalized -= times * params.frequency_penalty + params.presence_penalty
    return found.with_logits(np.where(times > 0, penalized, logits), is_sorted=False)


def _dry(found: Candidates, step: _Step) -> Candidates:
    logits = found.logits.copy()
    for token, penalty in dry_penalties(step.history, step.chain).items():
        logits[found.ids == token] -= penalty
    return found.with_logits(logits, is_sorted=False)


def _top_n_sigma(found: Candidates, step: _Step) -> Candidates:
    n, logits = step.chain.top_n_sigma, found.logits
    finite = logits[logits > -np.inf]
    if n <= 0 or len(logits) <= 1 or not len(finite):
        return found
    # Excluded, not removed: the dynamic temperature depends on the number of candidates.
    kept = np.where(logits >= finite.max() - n * finite.std(), logits, -np.inf)
    return found.with_logits(kept, is_sorted=found.is_sorted)


def _top_k(found: Candidates, step: _Step) -> Candidates:
    k = step.params.top_k
    return found if k <= 0 or k >= len(found.ids) else found.sorted().first(k)


def _typical_p(found: Candidates, step: _Step) -> Candidates:
    if step.params.typical_p >= 1.0:
        return found
    found = found.sorted()
    keep = kept_by_typical_p(found.logits, step.params.typical_p, step.chain.min_keep)
    return Candidates(found.ids[keep], found.logits[keep], is_sorted=True)


def _top_p(found: Candidates, step: _Step) -> Candidates:
    if step.params.top_p >= 1.0:
        return found
    found = found.sorted()
    n = n_kept_by_top_p(found.logits, step.params.top_p)
    return found.first(max(n, step.chain.min_keep))


def _min_p(found: Candidates, step: _Step) -> Candidates:
    if step.params.min_p <= 0.0:
        return found
    found = found.sorted()
    floor = found.logits[0] + min(math.log(step.params.min_p), 0.0)
    n = int((found.logits >= floor).sum())
    return found.first(max(n, step.chain.min_keep))


def _xtc(found: Candidates, step: _Step) -> Candidates:
    chain = step.chain
    if chain.xtc_probability <= 0.0 or chain.xtc_threshold > 0.5 or len(found.ids) < 2:
        return found
    if uniform(step.params.seed, step.position, _XTC_DRAW)[0] > chain.xtc_probability:
        return found
    found = found.sorted()
    n_likely = int((_softmax(found.logits) >= chain.xtc_threshold).sum())
    last = max(n_likely - 1, 0)
    if len(found.ids) - last < chain.min_keep:
        return found
    return Candidates(found.ids[last:], found.logits[last:], is_sorted=True)


def _temperature(found: Candidates, step: _Step) -> Candidates:
    temperature, spread = step.params.temperature, step.chain.dynatemp_range
    if spread > 0:
        if len(found.ids) <= 1:
            return found
        low, high = max(0.0, temperature - spread), temperature + spread
        share = _entropy(found.logits) / math.log(len(found.ids))
        temperature = low + (high - low) * share**step.chain.dynatemp_exponent
    if temperature <= 0:
        best = int(found.logits.argmax())
        return Candidates(found.ids[best : best + 1], found.logits[best : best + 1])
    return found.with_logits(found.logits / temperature, is_sorted=found.is_sorted)


def _entropy(logits: Floats) -> float:
    """Return the entropy of the softmax in nats."""
    probs = _softmax(logits)
    probs = probs[probs > 0]
    return -float((probs * np.log(probs)).sum())


_STAGES: Final[Mapping[SamplerStage, Callable[[Candidates, _Step], Candidates]]] = {
    SamplerStage.PENALTIES: _penalties,
    SamplerStage.DRY: _dry,
    SamplerStage.TOP_N_SIGMA: _top_n_sigma,
    SamplerStage.TOP_K: _top_k,
    SamplerStage.TYPICAL_P: _typical_p,
    SamplerStage.TOP_P: _top_p,
    SamplerStage.MIN_P: _min_p,
    SamplerStage.XTC: _xtc,
    SamplerStage.TEMPERATURE: _temperature,
}
