"""The daemon's signal handlers: SIGTERM and SIGINT stop it, SIGHUP reloads its settings."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signals:
    """Events that signals set.

    stop: set by the first SIGTERM or SIGINT.  force_stop: set by the second; a third one kills the
    process.  reload: set by SIGHUP; the reader clears it.
    """

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    force_stop: asyncio.Event = field(default_factory=asyncio.Event)
    reload: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def install(cls) -> Signals:
        signals = cls()
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, signals._on_stop)
        # Closing the daemon's terminal sends SIGHUP and must stop it, except under nohup.
        ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN

        def on_hangup() -> None:
            if ends_with_terminal and not _has_terminal():
                signals._on_stop()
            else:
                signals.reload.set()

        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        return signals

    def _on_stop(self) -> None:
        if self.stop.is_set():
            self.force_stop.set()
            for number in _STOP:
                asyncio.get_running_loop().remove_signal_handler(number)
        self.stop.set()


_STOP = (signal.SIGTERM, signal.SIGINT)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
