"""What systemd is told while the daemon runs: that it is alive, and what it does.

Pings come from the event loop itself: where that stands still, nobody is answered any more, and
systemd starts the daemon anew.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from specd.scheduler import SchedulerLoop
from specd.sd_notify import Systemd

log = logging.getLogger(__name__)

#: How often what is told is looked at: what it costs is too little to measure.
STATUS_INTERVAL_S = 1.0
#: Of the watchdog's limit: two pings may be lost.
_PING_FRACTION = 1 / 4


async def run_watchdog(
    systemd: Systemd,
    *,
    stuck: Callable[[], Sequence[str]],
    status: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    status_interval_s: float = STATUS_INTERVAL_S,
) -> None:
    """Ping, and tell what has changed, until cancelled.

    stuck: models whose engine makes no step and cannot be ended: while there is one, no ping is
    sent, and systemd ends all processes.  status: one line.
    """
    if systemd.watchdog_s is not None:
        # It ends with SIGABRT: the journal then says where it stood.
        faulthandler.enable()
    ping_s = systemd.watchdog_s * _PING_FRACTION if systemd.watchdog_s is not None else None
    pinged_at, last_status, is_stuck = clock(), "", False
    while True:
        lines = []
        status_text = _safe_status(status, last_status)
        if status_text != last_status:
            lines.append(f"STATUS={status_text}")
        if ping_s is not None and clock() >= pinged_at + ping_s:
            is_stuck = _log_stuck(_safe_stuck(stuck), is_stuck)
            if not is_stuck:
                lines.append("WATCHDOG=1")
        if lines and systemd.notify(*lines):
            last_status = status_text
            pinged_at = clock() if "WATCHDOG=1" in lines else pinged_at
        await sleep(status_interval_s if ping_s is None else min(status_interval_s, ping_s / 2))


def _safe_status(status: Callable[[], str], last_status: str) -> str:
    """A fault of ours in the words must not cost the ping."""
    try:
        return status()
    except Exception:
        log.exception("what the daemon does cannot be said")
        return last_status


def _safe_stuck(stuck: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Where it cannot be told, the event loop at least runs."""
    try:
        return stuck()
    except Exception:
        log.exception("whether an engine is stuck cannot be said")
        return ()


def _log_stuck(names: Sequence[str], is_stuck: bool) -> bool:
    """Whether the watchdog must go without its ping."""
    if names and not is_stuck:
        log.error(
            "%s: the engine makes no step and cannot be ended; the watchdog is not pinged",
            ", ".join(names),
        )
    return bool(names)


def status(prefix: str, scheduler: SchedulerLoop) -> str:
    """For `systemctl status`: what is loaded, how many answers run, who waits."""
    residents = scheduler.residents()
    names = ", ".join(str(resident.model.name) for resident in residents)
    running = sum(resident.n_users for resident in residents)
    waiting = Counter(scheduler.waiting())
    status_text = [prefix, f"loaded: {names}" if names else "no model is loaded"]
    if running:
        status_text.append("1 answer runs" if running == 1 else f"{running} answers run")
    status_text += [f"{n} waiting for {name}" for name, n in waiting.items()]
    return "; ".join(status_text)
