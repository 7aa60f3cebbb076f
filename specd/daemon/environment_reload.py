"""The environment at the start, and its changes by the environment file since.

systemd cannot change the environment of a running process, so the daemon reads the file again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from specd.errors import BadSetting
from specd.settings import Settings, read_env_file, variable_of

log = logging.getLogger(__name__)


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

        Empty if the file could not be read at the start: then a service's settings come from it.
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
