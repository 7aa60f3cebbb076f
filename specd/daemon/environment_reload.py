"""The environment at the start, and what the file of settings has made of it since.

A process cannot be given another environment, so the file of settings that systemd read at the
start is read again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from specd.errors import BadSetting
from specd.settings import Settings, read_env_file, variable_of

log = logging.getLogger(__name__)


class ReloadableEnvironment:
    """To be made before anything else: what stands in the file then is what systemd read."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._path = settings.env_file
        self.at_start = dict(os.environ if environment is None else environment)
        self._file_existed = self._path is not None and self._path.exists()
        try:
            self._from_file: dict[str, str] | None = self._read_file()
        except BadSetting:
            self._from_file = None  # systemd can read what this user cannot
        self._current = self.at_start

    def reread(self) -> dict[str, str]:
        """As at a new start, as far as that can be told.

        What was set otherwise than by the file, as for a daemon that is started by hand, stays.
        So does what the file no longer sets: what the unit itself has for it, only systemd knows,
        and a key that is asked for must not be lost with a line.
        Raises BadSetting where the file cannot be read, or is gone.
        """
        if self._file_existed and self._path is not None and not self._path.exists():
            raise BadSetting(f"{self._path} is not there any more")
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
        """They are in force: each of them could be used."""
        self._current = variables

    def _not_from_file(self) -> dict[str, str]:
        """Empty where the file of the start is not known: a service has its settings from it."""
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
                    "%s was set elsewhere than in %s at the start: what stands there now takes"
                    " effect when systemd starts the service next",
                    name,
                    self._path,
                )
            elif name in unchanged and name not in not_from_file and self._from_file is not None:
                log.warning(
                    "%s is not in %s any more, and stays as it is until specd is started next;"
                    " `%s=` there unsets it now",
                    name,
                    self._path,
                    name,
                )

    def _read_file(self) -> dict[str, str]:
        return read_env_file(self._path) if self._path is not None else {}
