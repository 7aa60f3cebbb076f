"""SIGHUP: files of pairs, and settings that can change while no connection notices.

What can change is said where each setting is declared.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from specd.daemon import logs
from specd.daemon.exposure import exposure
from specd.daemon.house import House
from specd.daemon.variables import Variables
from specd.errors import BadSetting
from specd.sd_notify import Systemd
from specd.settings import Settings, is_live, unknown_variables, variable_of

log = logging.getLogger(__name__)

#: systemd waits for both lines, and nobody waits for systemd longer.
_PATIENCE_S: Final = 1.0


class Reload:
    """settings: as they are in force.  addresses: of the daemon's sockets."""

    def __init__(
        self,
        house: House,
        settings: Settings,
        variables: Variables,
        systemd: Systemd,
        addresses: Sequence[object],
    ) -> None:
        self.settings = settings
        self._house = house
        self._systemd = systemd
        self._addresses = addresses
        self._variables = variables
        self._at_start = Settings.of(variables.at_start)

    async def whenever(self, asked: asyncio.Event) -> None:
        """Until cancelled."""
        while True:
            await asked.wait()
            asked.clear()
            now_us = time.monotonic_ns() // 1000
            await self._notify("RELOADING=1", f"MONOTONIC_USEC={now_us}")
            try:
                await self.once()
            except BadSetting as error:
                log.error("nothing is changed: %s", error)  # noqa: TRY400 - for the user
            except Exception:
                log.exception("nothing is changed")
            await self._notify("READY=1")

    async def _notify(self, *lines: str) -> None:
        await asyncio.to_thread(self._systemd.notify, *lines, patience_s=_PATIENCE_S)

    async def once(self) -> None:
        """Raises BadSetting, and all is as it was."""
        variables = await asyncio.to_thread(self._variables.again)
        new = Settings.of(variables)
        await asyncio.to_thread(self._house.rules.read_again)
        self._variables.take(variables)
        update = {name: getattr(new, name) for name in self._changed(new, live=True)}
        said = [variable_of(Settings.model_fields[name]) for name in update]
        self.settings = self.settings.model_copy(update=update)
        apply(self.settings, self._house)
        log.info("read again: %s", ", ".join(said) if said else "no setting that can change has")
        if update and (open_to := exposure(self._addresses, self.settings)):
            log.warning("%s", open_to)
        warn_of_unknown(variables)
        for name in self._changed(new, live=False):
            variable = variable_of(Settings.model_fields[name])
            log.warning("%s has changed, and takes effect at the next start", variable)

    def _changed(self, new: Settings, *, live: bool) -> list[str]:
        before = self.settings if live else self._at_start
        return [
            name
            for name, field in Settings.model_fields.items()
            if is_live(field) is live and getattr(new, name) != getattr(before, name)
        ]


def warn_of_unknown(variables: Mapping[str, str]) -> None:
    """Of what is set, and nobody reads: a misspelt setting."""
    for variable, meant in unknown_variables(variables).items():
        hint = f": is {meant} meant?" if meant else ""
        log.warning("%s is set, and is no setting%s", variable, hint)


def apply(settings: Settings, house: House) -> None:
    """Every setting that is declared as live."""
    logs.set_level(settings.debug)
    house.scheduler.adjust(max_queue=settings.max_queue, default_keep_alive_s=settings.keep_alive_s)
    house.origins.replace(settings.origins)
    house.keys.replace(key.get_secret_value() for key in settings.api_keys)
    house.pairs.enabled = settings.speculative_decode
    house.fetching.enable(settings.auto_pull_drafts)
    house.generation.adjust(settings)
