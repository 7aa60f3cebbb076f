"""Objects in answers that are the same in several dialects: speculation, timings, logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specd.core import SpeculationStats, TokenLogprob, TopLogprob, Usage

# JSON has no infinity: a token of probability 0 is shown as llama-server shows it (−FLT_MAX).
_LOWEST: Final = -3.4028234663852886e38


def speculation_object(stats: SpeculationStats) -> dict[str, object]:
    """Return specd's object about an answer's drafts.

    speedup: relative to the same model's plain speed; null while that is unknown.
    threshold: null if nothing can be drafted.
    """
    wire: dict[str, object] = {
        "drafter": stats.drafter,
        "pair_source": stats.pair_source,
        "draft_n": stats.draft_n,
        "draft_n_accepted": stats.draft_n_accepted,
        "lookup_n": stats.lookup_n,
        "lookup_n_accepted": stats.lookup_n_accepted,
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "mean_draft_length": round(stats.mean_draft_length, 4),
        "rounds": stats.rounds,
        "threshold": None if stats.threshold is None else round(stats.threshold, 4),
        "state": stats.state.value,
        "reason": stats.reason,
        "speedup": None if stats.speedup is None else round(stats.speedup, 4),
    }
    return wire | ({"detail": stats.detail} if stats.detail else {})


def timings_object(usage: Usage, stats: SpeculationStats) -> dict[str, object]:
    """Return llama-server's `timings` object, in milliseconds."""
    n_evaluated = usage.n_prompt - usage.n_cached
    return {
        "cache_n": usage.n_cached,
        "prompt_n": n_evaluated,
        "prompt_ms": usage.prompt_ns / 1e6,
        "prompt_per_second": _per_second(n_evaluated, usage.prompt_ns),
        "predicted_n": usage.n_generated,
        "predicted_ms": usage.generate_ns / 1e6,
        "predicted_per_second": _per_second(usage.n_generated, usage.generate_ns),
        "draft_n": stats.draft_n,
        "draft_n_accepted": stats.draft_n_accepted,
    }


def _per_second(count: int, nanoseconds: int) -> float:
    return count / nanoseconds * 1e9 if nanoseconds else 0.0


def logprob_entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """Return the JSON objects of the tokens.

    `bytes` is left out for an empty token, `top_logprobs` if none were requested.
    """
    return [
        _entry(chosen)
        | ({"top_logprobs": [_entry(top) for top in chosen.top]} if chosen.top else {})
        for chosen in logprobs
    ]


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, object]:
    entry: dict[str, object] = {"token": token.token, "logprob": max(token.logprob, _LOWEST)}
    return entry | ({"bytes": list(token.bytes)} if token.bytes else {})
