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


class Variables:
    """To be made before anything else: what stands in the file then is what systemd read."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._path = settings.env_file
        self.at_start = dict(os.environ if environment is None else environment)
        self._was_there = self._path is not None and self._path.exists()
        try:
            self._from_file: dict[str, str] | None = self._of_file()
        except BadSetting:
            self._from_file = None  # systemd can read what this user cannot
        self._now = self.at_start

    def again(self) -> dict[str, str]:
        """As at a new start, as far as that can be told.

        What was set otherwise than by the file, as for a daemon that is started by hand, stays.
        So does what the file no longer sets: what the unit itself has for it, only systemd knows,
        and a key that is asked for must not be lost with a line.
        Raises BadSetting where the file cannot be read, or is gone.
        """
        if self._was_there and self._path is not None and not self._path.exists():
            raise BadSetting(f"{self._path} is not there any more")
        file = self._of_file()
        self._was_there = self._path is not None and self._path.exists()
        elsewhere = self._set_elsewhere()
        kept = {
            name: value
            for name, value in self._now.items()
            if name in self.at_start and name not in file
        }
        self._tell(file, elsewhere, kept)
        return kept | file | elsewhere

    def take(self, variables: dict[str, str]) -> None:
        """They are in force: each of them could be used."""
        self._now = variables

    def _set_elsewhere(self) -> dict[str, str]:
        """Empty where the file of the start is not known: a service has its settings from it."""
        if self._from_file is None:
            return {}
        return {
            name: value
            for name, value in self.at_start.items()
            if self._from_file.get(name) != value
        }

    def _tell(
        self, file: Mapping[str, str], elsewhere: Mapping[str, str], kept: Iterable[str]
    ) -> None:
        ours = [variable_of(field) for field in Settings.model_fields.values()]
        for name in ours:
            if name in elsewhere and file.get(name, elsewhere[name]) != elsewhere[name]:
                log.warning(
                    "%s was set elsewhere than in %s at the start: what stands there now takes"
                    " effect when systemd starts the service next",
                    name,
                    self._path,
                )
            elif name in kept and name not in elsewhere and self._from_file is not None:
                log.warning(
                    "%s is not in %s any more, and stays as it is until specd is started next;"
                    " `%s=` there unsets it now",
                    name,
                    self._path,
                    name,
                )

    def _of_file(self) -> dict[str, str]:
        return read_env_file(self._path) if self._path is not None else {}
