"""Read which addresses specd.socket holds; they override OLLAMA_HOST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specd.settings import HostAddress

_STREAM: Final = " (Stream)"
_SERVED: Final = frozenset({"active", "reloading"})


@dataclass(frozen=True, slots=True)
class HeldSocket:
    """An active specd.socket.

    addresses: in systemd's form: `127.0.0.1:11434`, `[::]:11434`, a path.
    is_served: the daemon runs behind it; otherwise a connection would start it.
    """

    addresses: tuple[str, ...]
    is_served: bool = True

    @property
    def hosts(self) -> tuple[HostAddress, ...]:
        """Return the internet addresses."""
        return tuple(found for text in self.addresses if (found := _host(text)) is not None)

    @property
    def urls(self) -> tuple[str, ...]:
        """Return all addresses as URLs; a path becomes `unix:` and the path."""
        return tuple(_url(text) for text in self.addresses)


def parse_held_socket(socket: Mapping[str, str], service: Mapping[str, str]) -> HeldSocket | None:
    """Return the held socket, or None.

    socket, service: properties of specd.socket and specd.service.
    """
    if socket.get("ActiveState") != "active":
        return None
    lines = socket.get("Listen", "").splitlines()
    addresses = tuple(line.removesuffix(_STREAM) for line in lines if line.endswith(_STREAM))
    return HeldSocket(addresses, is_served=service.get("ActiveState") in _SERVED)


def _host(text: str) -> HostAddress | None:
    host, _, port = text.rpartition(":")
    if text.startswith(("/", "@", "vsock:")) or not port.isdecimal():
        return None
    return HostAddress("http", host.strip("[]"), int(port))


def _url(text: str) -> str:
    """Return a URL with the bound host, e.g. 0.0.0.0."""
    return f"http://{text}" if _host(text) is not None else f"unix:{text}"
