"""Sample the daemon every second of the hour, from the system and from its API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.soak.request_mix import PAIR
from benchmarks.soak.resource_monitor import EVERY_S, ResourceMonitor, Sample
from benchmarks.soak.soak_daemon import SoakDaemon


@dataclass(slots=True)
class DraftingStats:
    """The drafting of the pair.

    n_loaded: samples in which it was loaded; n_paired: samples with its drafter.
    drafted, accepted: tokens of all its engines, without the last second of each.
    """

    n_loaded: int = 0
    n_paired: int = 0
    drafted: int = 0
    accepted: int = 0
    _last: tuple[int, int] = (0, 0)

    def update_from_ps(self, loaded: Sequence[Any]) -> None:
        """Add the answer of /api/ps.  The counters of each engine start at zero."""
        for each in loaded:
            if _name(each) == PAIR:
                facts = each["specd"]
                self.n_loaded += 1
                self.n_paired += facts["drafter"] is not None
                now = facts["draft_n"], facts["draft_n_accepted"]
                before = self._last if now[0] >= self._last[0] else (0, 0)
                self.drafted += now[0] - before[0]
                self.accepted += now[1] - before[1]
                self._last = now


async def monitor_daemon(
    soak_daemon: SoakDaemon,
    resource_monitor: ResourceMonitor,
    drafting: DraftingStats,
    say: Callable[[str], None],
) -> None:
    """Sample until cancelled; print the state every minute."""
    began_s, n_said = time.monotonic(), 0
    async with aiohttp.ClientSession(soak_daemon.url) as http:
        while True:
            async with http.get("/api/ps") as reply:
                loaded = (await reply.json())["models"]
            drafting.update_from_ps(loaded)
            contexts = {_name(each): each["context_length"] for each in loaded}
            sample = await asyncio.to_thread(resource_monitor.read, contexts)
            if (n_minutes := int((sample.at_s - began_s) / 60)) > n_said:
                n_said = n_minutes
                say(f"{n_minutes} min, MiB: {_sizes(sample)}")
            await asyncio.sleep(EVERY_S)


def _name(entry: Any) -> str:
    return str(entry["name"]).partition(":")[0]


def _sizes(sample: Sample) -> str:
    rss = {"daemon": sample.daemon.rss_bytes}
    rss |= {model: held.rss_bytes for (model, _), held in sample.engines.items()}
    return ", ".join(f"{what} {n_bytes / 2**20:.0f}" for what, n_bytes in rss.items())
