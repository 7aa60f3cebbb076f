"""Compare the daemon's log and counters with the clients' outcomes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.soak.clients import End, Outcome

#: Requests that an engine works on, or that wait for one.
_UNDER_WAY = frozenset({"specd:num_requests_running", "specd:num_requests_waiting"})
_LOGGER = "specd.requests"


def count_log_lines(log: Iterable[str]) -> Counter[str]:
    """Return request id → number of log lines about its end."""
    found: Counter[str] = Counter()
    for line in log:
        if f'"{_LOGGER}"' not in line:
            continue
        entry = json.loads(line)
        if entry["logger"] == _LOGGER:
            found[entry["request_id"]] += 1
    return found


def find_bad_log_lines(lines: Counter[str], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return outcomes without exactly one log line.  A client that left at once may have none."""
    return [
        outcome
        for outcome in outcomes
        if lines[outcome.id] != 1
        and not (outcome.end is End.LEFT and outcome.first_byte_s is None and not lines[outcome.id])
    ]


async def count_active_requests(http: aiohttp.ClientSession) -> int:
    """Return the number of requests that the daemon counts as running or waiting."""
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
