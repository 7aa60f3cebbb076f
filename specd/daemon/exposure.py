"""To whom the daemon is open, said at its start where that is more than this machine."""

from __future__ import annotations

from collections.abc import Iterable

from specd.settings import Settings, is_loopback


def exposure(addresses: Iterable[object], settings: Settings) -> str:
    """A sentence for the log; "" where only this machine, or who has a key, is answered.

    addresses: of the sockets; tuples that begin with a host, other ones are files.
    """
    if settings.api_keys:
        return ""
    if hosts := _exposed_hosts(addresses):
        return (
            f"everyone who reaches {' or '.join(hosts)} may run, pull, push, replace and delete"
            " models, and read what is loaded: no key is asked for. Set SPECD_API_KEYS, or"
            " OLLAMA_HOST=127.0.0.1 to listen on this machine alone"
        )
    if "*" in settings.origins:
        return (
            "every web page that a browser on this machine shows may run, pull, push, replace and"
            " delete models (OLLAMA_ORIGINS=*): no key is asked for. Set SPECD_API_KEYS, or name"
            " the pages"
        )
    return ""


def listening_status(urls: str, addresses: Iterable[object], settings: Settings) -> str:
    """What the line of `systemctl status` begins with.  places: in words."""
    exposure_warning = exposure(addresses, settings)
    warning = "; WARNING: open to strangers, SPECD_API_KEYS is not set" if exposure_warning else ""
    return f"listening on {urls}{warning}"


def _exposed_hosts(addresses: Iterable[object]) -> list[str]:
    """From elsewhere: `host:port` each."""
    inet_addresses = [address[:2] for address in addresses if isinstance(address, tuple)]
    return [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in inet_addresses
        if not is_loopback(host)
    ]
