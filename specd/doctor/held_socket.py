"""What specd.socket holds: the addresses are its own then, whatever OLLAMA_HOST says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specd.settings import HostAddress

_STREAM: Final = " (Stream)"
_SERVED: Final = frozenset({"active", "reloading"})


@dataclass(frozen=True, slots=True)
class HeldSocket:
    """Of an active specd.socket.

    addresses: as systemd writes them: `127.0.0.1:11434`, `[::]:11434`, a path.
    is_served: the daemon runs behind it; where it does not, a connection would start it.
    """

    addresses: tuple[str, ...]
    is_served: bool = True

    @property
    def hosts(self) -> tuple[HostAddress, ...]:
        """Those of the internet."""
        return tuple(found for text in self.addresses if (found := _host(text)) is not None)

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them; `unix:` and a path, too."""
        return tuple(_url(text) for text in self.addresses)


def parse_held_socket(socket: Mapping[str, str], service: Mapping[str, str]) -> HeldSocket | None:
    """socket, service: properties of specd.socket and specd.service; None where it holds none."""
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
    """With the host as it is bound: 0.0.0.0 is everybody's."""
    return f"http://{text}" if _host(text) is not None else f"unix:{text}"
