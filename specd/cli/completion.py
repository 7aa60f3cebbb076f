"""Complete model names with the names that the daemon knows.

The list is empty if the daemon does not answer within 0.5 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from specd.cli.bash_completion import COLON_PREFIX
from specd.cli.sync_client import SyncClient
from specd.daemon_address import daemon_address
from specd.errors import SpecdError

#: Timeout for connecting to a daemon on another machine.
_TIMEOUT_S: Final = 0.5


def complete_models(incomplete: str) -> list[str]:
    """Return the names of the models on disk that start with `incomplete`."""
    return _matching("/api/tags", incomplete)


def complete_loaded_models(incomplete: str) -> list[str]:
    """Return the names of the models in memory that start with `incomplete`."""
    return _matching("/api/ps", incomplete)


def _matching(path: str, incomplete: str) -> list[str]:
    before = os.environ.get(COLON_PREFIX, "")
    wanted = before + incomplete
    return [name.removeprefix(before) for name in _names(path) if name.startswith(wanted)]


def _names(path: str) -> Iterator[str]:
    try:
        address = daemon_address()
        client = SyncClient(address.url, address.key, connect_s=_TIMEOUT_S, read_s=_TIMEOUT_S)
        models: Any = client.get(path).get("models")
    except SpecdError:
        return
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("name"), str):
            yield model["name"]
