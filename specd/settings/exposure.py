"""Describe who can use the daemon without a key: for the daemon's log and `specd doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specd.daemon_address import is_loopback
from specd.settings.settings import Settings

_CAN = "can run, pull, push, replace and delete models"


def find_exposure(
    addresses: Iterable[tuple[str, int]], settings: Settings
) -> Iterator[tuple[str, str]]:
    """Yield a sentence and a remedy for each way in for strangers; nothing if a key is required.

    addresses: host and port of the internet sockets.
    """
    if settings.api_keys:
        return
    if hosts := [_host_and_port(*one) for one in addresses if not is_loopback(one[0])]:
        who = f"everyone who can reach {' or '.join(hosts)}"
        remedy = "set SPECD_API_KEYS, or OLLAMA_HOST=127.0.0.1 to listen on this machine only"
        yield f"{who} {_CAN}, and see which are loaded: no key is required", remedy
    if "*" in settings.origins:
        who = "every web page that a browser on this machine opens"
        remedy = "set SPECD_API_KEYS, or list the pages in OLLAMA_ORIGINS"
        yield f"{who} {_CAN} (OLLAMA_ORIGINS=*): no key is required", remedy


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
