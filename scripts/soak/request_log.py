"""The daemon's own account: a line of its log for each request, and what it counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from scripts.soak.clients import End, Outcome

#: Requests that an engine is at work on, or that wait for one.
_UNDER_WAY = frozenset({"specd:num_requests_running", "specd:num_requests_waiting"})
_LOGGER = "specd.requests"


def count_log_lines(log: Iterable[str]) -> Counter[str]:
    """Request id → how many lines say how it ended."""
    found: Counter[str] = Counter()
    for line in log:
        if f'"{_LOGGER}"' not in line:
            continue
        entry = json.loads(line)
        if entry["logger"] == _LOGGER:
            found[entry["request_id"]] += 1
    return found


def find_bad_log_lines(lines: Counter[str], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those without exactly one line; who left at once may never have been heard."""
    return [
        outcome
        for outcome in outcomes
        if lines[outcome.id] != 1
        and not (outcome.end is End.LEFT and outcome.first_byte_s is None and not lines[outcome.id])
    ]


async def count_active_requests(http: aiohttp.ClientSession) -> int:
    """Requests that the daemon believes to be at work or waiting."""
    async with http.get("/metrics") as response:
        text = await response.text()
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in _UNDER_WAY
        )
    )
