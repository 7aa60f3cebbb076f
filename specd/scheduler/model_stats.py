"""Statistics of the answers of one loaded model."""

from __future__ import annotations

from dataclasses import dataclass

from specd import core


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStats:
    """Sums over the completed answers since the load, without embeddings.

    judged_ns: time of the answers whose gain is known.  plain_ns: their time without drafts.
    last: statistics of the newest answer that allowed drafts.
    threshold: of the newest answer that has one (`SpeculationStats.threshold`).
    """

    n_requests: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    judged_ns: int = 0
    plain_ns: float = 0.0
    last: core.SpeculationStats | None = None
    threshold: float | None = None

    @property
    def gain(self) -> float | None:
        """Tokens/s ÷ plain tokens/s, weighted by time; None if unknown."""
        return self.plain_ns / self.judged_ns if self.judged_ns else None

    @property
    def acceptance_rate(self) -> float:
        return self.draft_n_accepted / self.draft_n if self.draft_n else 0.0

    def with_answer(self, done: core.Done) -> ModelStats:
        """Return the statistics with one more answer."""
        stats = done.speculation
        # A request without drafts says nothing about the drafter.
        has_draft_stats = stats.reason != core.NoPair.DISABLED_BY_USER
        judged_ns = done.usage.generate_ns if has_draft_stats and stats.speedup is not None else 0
        return ModelStats(
            n_requests=self.n_requests + 1,
            draft_n=self.draft_n + stats.draft_n,
            draft_n_accepted=self.draft_n_accepted + stats.draft_n_accepted,
            judged_ns=self.judged_ns + judged_ns,
            plain_ns=self.plain_ns + judged_ns * (stats.speedup or 0.0),
            last=stats if has_draft_stats else self.last,
            threshold=self.threshold if stats.threshold is None else stats.threshold,
        )
