"""Check that the started daemon answers and finds its models."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Final

from specd.errors import InstallError
from specd.install.host_system import HostSystem
from specd.install.steps import Step, Undo

_TIMEOUT_S: Final = 60.0
_ONE_TRY_S: Final = 10.0


def check_health(url: str, n_models: int = 0) -> Step:
    """Return a step that waits for an answer of the daemon.

    url: without a trailing slash.  n_models: manifests in the store; some must be listed.
    """

    def do(_: HostSystem, _undo: Undo) -> None:
        version = _ask(f"{url}/api/version")
        listed = _ask(f"{url}/api/tags") if n_models and version is not None else None
        if isinstance(listed, dict) and not listed.get("models"):
            none = "none of the" if n_models > 1 else "not the"
            raise InstallError(
                f"specd lists {none} {format_model_count(n_models)} in the store:"
                " journalctl -u specd"
            )

    listed = f", and lists models ({format_model_count(n_models)} in the store)"
    return Step(f"check that specd answers on {url}{listed if n_models else ''}", do)


def format_model_count(n_models: int) -> str:
    return f"{n_models} model{'' if n_models == 1 else 's'}"


def _ask(url: str) -> object:
    """Return the answer; None if an API key is required, since that also proves that it runs.

    Raises InstallError.
    """
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
            raise InstallError(f"{url} answers {error.code}, which specd never does") from error
        except (OSError, ValueError) as error:
            if time.monotonic() >= until:
                raise InstallError(f"no daemon answers on {url}: {error}") from error
            time.sleep(0.1)
