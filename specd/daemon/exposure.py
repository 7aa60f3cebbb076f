"""Warns at the start if others than this machine can use the daemon without a key."""

from __future__ import annotations

from collections.abc import Iterable

from specd.settings import Settings, is_loopback


def exposure(addresses: Iterable[object], settings: Settings) -> str:
    """Return a warning for the log; "" if a key is required or only this machine can connect.

    addresses: of the sockets: tuples that begin with a host and a port; others are unix sockets.
    """
    if settings.api_keys:
        return ""
    if hosts := _exposed_hosts(addresses):
        return (
            f"everyone who can reach {' or '.join(hosts)} can run, pull, push, replace and delete"
            " models, and see which are loaded: no key is required. Set SPECD_API_KEYS, or"
            " OLLAMA_HOST=127.0.0.1 to listen on this machine only"
        )
    if "*" in settings.origins:
        return (
            "every web page that a browser on this machine opens can run, pull, push, replace and"
            " delete models (OLLAMA_ORIGINS=*): no key is required. Set SPECD_API_KEYS, or list"
            " the pages in OLLAMA_ORIGINS"
        )
    return ""


def listening_status(urls: str, addresses: Iterable[object], settings: Settings) -> str:
    """Return the beginning of the status line for `systemctl status`.

    urls: the addresses as text.
    """
    exposure_warning = exposure(addresses, settings)
    warning = "; WARNING: open to strangers, SPECD_API_KEYS is not set" if exposure_warning else ""
    return f"listening on {urls}{warning}"


def _exposed_hosts(addresses: Iterable[object]) -> list[str]:
    """Return the addresses that other machines can reach, each as `host:port`."""
    inet_addresses = [address[:2] for address in addresses if isinstance(address, tuple)]
    return [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in inet_addresses
        if not is_loopback(host)
    ]
