"""All ten targets of the design, from what a bench found."""

from __future__ import annotations

from specd.bench.findings import Findings
from specd.bench.targets import Verdict
from specd.bench.targets_exact import exact_targets
from specd.bench.targets_speed import speed_targets


def judge(findings: Findings) -> tuple[Verdict, ...]:
    """In the design's order; one without figures was not measured."""
    found = [*speed_targets(findings), *exact_targets(findings)]
    return tuple(sorted(found, key=lambda verdict: verdict.number))
