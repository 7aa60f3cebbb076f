"""Whether what was started answers, and finds its models."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

from specd.errors import InstallError
from specd.install.host_system import HostSystem
from specd.install.steps import Step

_TIMEOUT_S: Final = 60.0
_ONE_TRY_S: Final = 10.0


@dataclass
class CheckHealth(Step):
    """url: without a trailing slash.  n_models: manifests in the store; some must be listed."""

    url: str
    n_models: int = 0

    @property
    def words(self) -> str:
        listed = f", and lists models ({format_model_count(self.n_models)} in the store)"
        return f"check that specd answers on {self.url}{listed if self.n_models else ''}"

    def do(self, machine: HostSystem) -> None:  # noqa: ARG002
        version = _ask(f"{self.url}/api/version")
        if not self.n_models or version is None:
            return
        listed = _ask(f"{self.url}/api/tags")
        if isinstance(listed, dict) and not listed.get("models"):
            none = "none of the" if self.n_models > 1 else "not the"
            raise InstallError(
                f"specd lists {none} {format_model_count(self.n_models)} of the store:"
                " journalctl -u specd"
            )


def format_model_count(n_models: int) -> str:
    return f"{n_models} model{'' if n_models == 1 else 's'}"


def _ask(url: str) -> object:
    """The answer; None where a key is asked for, which proves enough.  Raises InstallError."""
    until = time.monotonic() + _TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=_ONE_TRY_S) as answer:
                found: object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in {401, 403}:
                return None
            raise InstallError(f"{url} answers {error.code}, which no specd does") from error
        except (OSError, ValueError) as error:
            if time.monotonic() >= until:
                raise InstallError(f"nobody answers on {url}: {error}") from error
            time.sleep(0.1)
