"""Build findings with known figures."""

from __future__ import annotations

from benchmarks.targets.findings import Findings
from benchmarks.targets.output_equality import OutputEquality
from benchmarks.targets.round_time import RoundTime
from benchmarks.targets.sampling_check import SamplingCheck
from benchmarks.targets.second_turn import SecondTurn
from specd.bench.report import Report
from specd.bench.runs import MedianRange


def findings(reported: Report) -> Findings:
    """Return findings; figures that are not in `reported` meet their targets."""
    return Findings(
        report=reported,
        commands=("make peer", "python -m benchmarks.targets"),
        llama_commit="0123abc",
        rounds=tuple(
            RoundTime(
                slots=slots,
                temperature=0.8,
                mode="auto",
                overhead_ms=MedianRange(0.31 * slots**0.5, 0.3, 1.0),
                round_ms=7.0,
                tokens_per_round=2.5,
                n_vocab=131072,
                n_requests=4,
            )
            for slots in (1, 8)
        ),
        sameness=tuple(
            OutputEquality(
                temperature=temperature,
                n_prompts=100,
                n_same=100,
                n_tokens=12_345,
                n_drafted=678,
                n_accepted=567,
            )
            for temperature in (0.0, 0.8)
        ),
        draws=tuple(
            SamplingCheck(
                temperature=temperature,
                n_draws=50_123,
                n_rows=77,
                n_drafted=9_000,
                n_accepted=8_000,
                n_impossible=0,
                statistic=101.5,
                n_free=99,
                p_value=0.41,
            )
            for temperature in (0.8, 1.0)
        ),
        second_turns=(SecondTurn(n_prompt=95, n_known=83, n_evaluated=12),),
    )
