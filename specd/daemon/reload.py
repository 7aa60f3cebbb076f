"""Reload on SIGHUP: the pairs files, and the settings that are declared as live.

systemd cannot change the environment of a running process, so the daemon reads the environment file
again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from specd.daemon import logs
from specd.daemon.app import DaemonServices
from specd.daemon.sockets import exposure
from specd.errors import BadSetting
from specd.sd_notify import Systemd
from specd.settings import Settings, is_live, read_env_file, unknown_variables, variable_of

log = logging.getLogger(__name__)

#: systemd needs both notifications; the daemon waits at most this long for each (seconds).
_NOTIFY_TIMEOUT_S: Final = 1.0


class ReloadableEnvironment:
    """The environment, which can be updated from the environment file.

    Create it before anything else, so that the file is still the one that systemd read.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._path = settings.env_file
        self.at_start = dict(os.environ if environment is None else environment)
        self._file_existed = self._path is not None and self._path.exists()
        try:
            self._from_file: dict[str, str] | None = self._read_file()
        except BadSetting:
            self._from_file = None  # systemd can read files that this user cannot
        self._current = self.at_start

    def reread(self) -> dict[str, str]:
        """Return the variables as a restart would set them, as far as that is known.

        A variable that was not set by the file keeps its value, as in a daemon started by hand.
        So does a variable that the file no longer sets: only systemd knows the unit's own value,
        and deleting a line must not disable the API keys.
        Raises BadSetting if the file cannot be read, or no longer exists.
        """
        if self._file_existed and self._path is not None and not self._path.exists():
            raise BadSetting(f"{self._path} no longer exists")
        file = self._read_file()
        self._file_existed = self._path is not None and self._path.exists()
        not_from_file = self._not_from_file()
        unchanged = {
            name: value
            for name, value in self._current.items()
            if name in self.at_start and name not in file
        }
        self._warn_not_applied(file, not_from_file, unchanged)
        return unchanged | file | not_from_file

    def commit(self, variables: dict[str, str]) -> None:
        """Make the variables the current ones, once all of them are known to be valid."""
        self._current = variables

    def _not_from_file(self) -> dict[str, str]:
        """Return the variables at the start whose value is not the file's.

        Empty if the file could not be read at the start: then systemd has set them from it.
        """
        if self._from_file is None:
            return {}
        return {
            name: value
            for name, value in self.at_start.items()
            if self._from_file.get(name) != value
        }

    def _warn_not_applied(
        self, file: Mapping[str, str], not_from_file: Mapping[str, str], unchanged: Iterable[str]
    ) -> None:
        setting_names = [variable_of(field) for field in Settings.model_fields.values()]
        for name in setting_names:
            if name in not_from_file and file.get(name, not_from_file[name]) != not_from_file[name]:
                log.warning(
                    "%s was not set by %s at the start: its value there takes effect at the next"
                    " start of the service",
                    name,
                    self._path,
                )
            elif name in unchanged and name not in not_from_file and self._from_file is not None:
                log.warning(
                    "%s is no longer in %s and keeps its value until the next start of specd; add"
                    " the line `%s=` to unset it now",
                    name,
                    self._path,
                    name,
                )

    def _read_file(self) -> dict[str, str]:
        return read_env_file(self._path) if self._path is not None else {}


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
