"""Reload on SIGHUP: the pairs files, and the settings that are declared as live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from specd.daemon import logs
from specd.daemon.app import DaemonServices
from specd.daemon.environment_reload import ReloadableEnvironment
from specd.daemon.exposure import exposure
from specd.errors import BadSetting
from specd.sd_notify import Systemd
from specd.settings import Settings, is_live, unknown_variables, variable_of

log = logging.getLogger(__name__)

#: systemd needs both notifications; the daemon waits at most this long for each (seconds).
_NOTIFY_TIMEOUT_S: Final = 1.0


class Reload:
    """The handler of SIGHUP.

    settings: the current settings.  addresses: of the daemon's sockets.
    """

    def __init__(
        self,
        services: DaemonServices,
        settings: Settings,
        variables: ReloadableEnvironment,
        systemd: Systemd,
        addresses: Sequence[object],
    ) -> None:
        self.settings = settings
        self._services = services
        self._systemd = systemd
        self._addresses = addresses
        self._variables = variables
        self._at_start = Settings.of(variables.at_start)

    async def reload_on(self, requested: asyncio.Event) -> None:
        """Reload whenever the event is set, until cancelled."""
        while True:
            await requested.wait()
            requested.clear()
            now_us = time.monotonic_ns() // 1000
            await self._notify("RELOADING=1", f"MONOTONIC_USEC={now_us}")
            try:
                await self.reload_once()
            except BadSetting as error:
                log.error("reload failed, nothing changed: %s", error)  # noqa: TRY400 - for users
            except Exception:
                log.exception("reload failed, nothing changed")
            await self._notify("READY=1")

    async def _notify(self, *lines: str) -> None:
        await asyncio.to_thread(self._systemd.notify, *lines, timeout_s=_NOTIFY_TIMEOUT_S)

    async def reload_once(self) -> None:
        """Read the files again and apply them.  Raises BadSetting without changing anything."""
        variables = await asyncio.to_thread(self._variables.reread)
        new = Settings.of(variables)
        await asyncio.to_thread(self._services.rules.read_again)
        self._variables.commit(variables)
        update = {name: getattr(new, name) for name in self._changed(new, live=True)}
        changed = [variable_of(Settings.model_fields[name]) for name in update]
        self.settings = self.settings.model_copy(update=update)
        apply_settings(self.settings, self._services)
        log.info("reloaded: %s", ", ".join(changed) if changed else "no live setting has changed")
        if update and (exposure_warning := exposure(self._addresses, self.settings)):
            log.warning("%s", exposure_warning)
        warn_unknown_variables(variables)
        for name in self._changed(new, live=False):
            variable = variable_of(Settings.model_fields[name])
            log.warning("%s has changed; restart specd to apply it", variable)

    def _changed(self, new: Settings, *, live: bool) -> list[str]:
        before = self.settings if live else self._at_start
        return [
            name
            for name, field in Settings.model_fields.items()
            if is_live(field) is live and getattr(new, name) != getattr(before, name)
        ]


def warn_unknown_variables(variables: Mapping[str, str]) -> None:
    """Log a warning for each unknown variable, which may be a misspelt setting."""
    for variable, suggestion in unknown_variables(variables).items():
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        log.warning("%s is set, but there is no such setting%s", variable, hint)


def apply_settings(settings: Settings, services: DaemonServices) -> None:
    """Pass every live setting to the service that uses it."""
    logs.set_level(settings.debug)
    services.scheduler.adjust(
        max_queue=settings.max_queue, default_keep_alive_s=settings.keep_alive_s
    )
    services.origins.replace(settings.origins)
    services.keys.replace(key.get_secret_value() for key in settings.api_keys)
    services.pairs.enabled = settings.speculative_decode
    services.drafter_fetcher.enable(settings.auto_pull_drafts)
    services.generation.adjust(settings)
