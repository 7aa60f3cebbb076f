"""SIGHUP: files of pairs, and settings that can change while no connection notices.

A process cannot be given another environment, so the file of settings that systemd read at the
start is read again.  What can change is said where each setting is declared.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence

from specd.daemon import logs
from specd.daemon.exposure import exposure
from specd.daemon.house import House
from specd.errors import BadSetting
from specd.sd_notify import Systemd
from specd.settings import Settings, is_live, read_env_file, variable_of

log = logging.getLogger(__name__)


class Variables:
    """The environment at the start, and what the file of settings has made of it since."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._path = settings.env_file
        self.at_start = dict(os.environ if environment is None else environment)
        self._from_file = self._of_file(quiet=True)

    def again(self) -> dict[str, str]:
        """As at a new start.  Raises BadSetting where the file cannot be read.

        What was set otherwise than by the file, as for a daemon that is started by hand, stays.
        """
        file = self._of_file()
        ours = [variable_of(field) for field in Settings.model_fields.values()]
        theirs = {
            name: value
            for name, value in self.at_start.items()
            if self._from_file.get(name) != value
        }
        for name in ours:
            if name in theirs and file.get(name, theirs[name]) != theirs[name]:
                log.warning(
                    "%s was set elsewhere than in %s at the start: what stands there now takes"
                    " effect when systemd starts the service next",
                    name,
                    self._path,
                )
        return file | theirs

    def _of_file(self, *, quiet: bool = False) -> dict[str, str]:
        try:
            return read_env_file(self._path) if self._path is not None else {}
        except BadSetting:
            if quiet:  # it was not what the daemon was started with
                return {}
            raise


class Reload:
    """settings: as they are in force.  addresses: of the daemon's sockets."""

    def __init__(
        self, house: House, settings: Settings, systemd: Systemd, addresses: Sequence[object]
    ) -> None:
        self.settings = settings
        self._house = house
        self._systemd = systemd
        self._addresses = addresses
        self._variables = Variables(settings)
        self._at_start = Settings.of(self._variables.at_start)

    async def whenever(self, asked: asyncio.Event) -> None:
        """Until cancelled."""
        while True:
            await asked.wait()
            asked.clear()
            now_us = time.monotonic_ns() // 1000
            self._systemd.notify("RELOADING=1", f"MONOTONIC_USEC={now_us}", patience_s=1.0)
            try:
                await self.once()
            except BadSetting as error:
                log.error("nothing is changed: %s", error)  # noqa: TRY400 - for the user
            except Exception:
                log.exception("nothing is changed")
            self._systemd.notify("READY=1", patience_s=1.0)

    async def once(self) -> None:
        """Raises BadSetting, and all is as it was."""
        new = await asyncio.to_thread(lambda: Settings.of(self._variables.again()))
        await asyncio.to_thread(self._house.rules.read_again)
        update = {name: getattr(new, name) for name in self._changed(new, live=True)}
        said = [variable_of(Settings.model_fields[name]) for name in update]
        self.settings = self.settings.model_copy(update=update)
        apply(self.settings, self._house)
        log.info("read again: %s", ", ".join(said) if said else "no setting that can change has")
        if update and (open_to := exposure(self._addresses, self.settings)):
            log.warning("%s", open_to)
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


def apply(settings: Settings, house: House) -> None:
    """Every setting that is declared as live."""
    logs.set_level(settings.debug)
    house.scheduler.adjust(max_queue=settings.max_queue, default_keep_alive_s=settings.keep_alive_s)
    house.origins.replace(settings.origins)
    house.keys.replace(key.get_secret_value() for key in settings.api_keys)
    house.pairs.enabled = settings.speculative_decode
    house.fetching.enable(settings.auto_pull_drafts)
    house.generation.adjust(settings)
