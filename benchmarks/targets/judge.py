"""Judge all ten targets."""

from __future__ import annotations

from benchmarks.targets.exact_targets import exact_targets
from benchmarks.targets.findings import Findings
from benchmarks.targets.speed_targets import speed_targets
from benchmarks.targets.verdict import Verdict


def judge(findings: Findings) -> tuple[Verdict, ...]:
    """Return the verdicts by number; one without figures was not measured."""
    found = [*speed_targets(findings), *exact_targets(findings)]
    return tuple(sorted(found, key=lambda verdict: verdict.number))
