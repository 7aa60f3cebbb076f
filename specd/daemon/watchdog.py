"""Sends watchdog pings and status lines to systemd.

The event loop itself sends the pings.  If it blocks, no request is answered and the pings stop, so
systemd restarts the daemon.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from specd.scheduler import SchedulerLoop
from specd.sd_notify import Systemd

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds between two checks of the status line.
STATUS_INTERVAL_S = 1.0
#: Interval of pings as a fraction of the watchdog's limit: two pings may be lost.
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
    """Send pings, and the status line when it changes, until cancelled.

    stuck: returns the models whose engine makes no step and cannot be killed.  While there is one,
    no ping is sent, and systemd kills all processes.  status: returns one line.
    """
    if systemd.watchdog_s is not None:
        # systemd sends SIGABRT; faulthandler then writes a traceback to the journal.
        faulthandler.enable()
    ping_s = systemd.watchdog_s * _PING_FRACTION if systemd.watchdog_s is not None else None
    pinged_at, last_status, is_stuck = clock(), "", False
    while True:
        lines = []
        status_text = _or_last(status, last_status, "cannot build the status line for systemd")
        if status_text != last_status:
            lines.append(f"STATUS={status_text}")
        if ping_s is not None and clock() >= pinged_at + ping_s:
            is_stuck = _log_stuck(_or_last(stuck, (), "cannot check for stuck engines"), is_stuck)
            if not is_stuck:
                lines.append("WATCHDOG=1")
        if lines and systemd.notify(*lines):
            last_status = status_text
            pinged_at = clock() if "WATCHDOG=1" in lines else pinged_at
        await sleep(status_interval_s if ping_s is None else min(status_interval_s, ping_s / 2))


def _or_last(read: Callable[[], T], last: T, message: str) -> T:
    """Return `read()`, or the last value if it fails, so that the pings continue."""
    try:
        return read()
    except Exception:
        log.exception("%s", message)
        return last


def _log_stuck(names: Sequence[str], is_stuck: bool) -> bool:
    """Return whether to withhold the ping; log the first time."""
    if names and not is_stuck:
        log.error(
            "%s: the engine makes no step and cannot be killed; withholding watchdog pings",
            ", ".join(names),
        )
    return bool(names)


def status(prefix: str, scheduler: SchedulerLoop) -> str:
    """Return the line for `systemctl status`: loaded models, running answers, waiting requests."""
    residents = scheduler.residents()
    names = ", ".join(str(resident.model.name) for resident in residents)
    running = sum(resident.n_users for resident in residents)
    waiting = Counter(scheduler.waiting())
    status_text = [prefix, f"loaded: {names}" if names else "no model loaded"]
    if running:
        status_text.append("1 running answer" if running == 1 else f"{running} running answers")
    status_text += [f"{n} waiting for {name}" for name, n in waiting.items()]
    return "; ".join(status_text)
