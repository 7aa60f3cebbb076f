"""What the daemon hears: SIGTERM and SIGINT to stop, SIGHUP to read its settings again."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signals:
    """stop, hurry: set by the first and by the second signal to stop; a third ends the process on
    the spot.  reload: set by SIGHUP; whoever acts on it clears it.
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
        # Who closes the terminal in which the daemon runs wants it to end, unless nohup was asked.
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
