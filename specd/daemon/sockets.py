"""The daemon's listening sockets: its own, or systemd's (specd.socket); and who can reach them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Iterable, Sequence

from specd.errors import BadSetting
from specd.port_owner import find_listener
from specd.settings import HostAddress, Settings, find_exposure, is_loopback

log = logging.getLogger(__name__)

_Sockets = Sequence[socket.socket]


def apply_systemd_sockets(settings: Settings, systemd_sockets: _Sockets) -> Settings:
    """Return the settings with `host` set to the address of systemd's sockets, if there are any.

    Raises BadSetting for a socket that is not a listening stream socket.
    """
    if not systemd_sockets:
        return settings
    for sock in systemd_sockets:
        is_stream = sock.type == socket.SOCK_STREAM
        if not is_stream or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise BadSetting(
                f"specd.socket passed a socket that is not a listening stream ({sock.type.name}):"
                " use ListenStream= and Accept=no there"
            )
    addresses = [sock.getsockname() for sock in systemd_sockets]
    hosts = [HostAddress("http", one[0], one[1]) for one in addresses if isinstance(one, tuple)]
    configured = settings.host
    if "host" in settings.model_fields_set and configured not in hosts:
        log.warning(
            "OLLAMA_HOST=%s:%d has no effect: specd.socket listens on %s. Change it with"
            " `systemctl edit specd.socket`, or run `systemctl disable --now specd.socket` to use"
            " OLLAMA_HOST",
            configured.host,
            configured.port,
            " and ".join(map(url_of, addresses)),
        )
    # The access rules follow from `host`, so the most exposed address counts.
    most_exposed = next((host for host in hosts if not is_loopback(host.host)), None)
    return settings.model_copy(update={"host": most_exposed or next(iter(hosts), configured)})


async def bind(address: HostAddress) -> list[socket.socket]:
    """Return one bound socket for each address family of the host.

    As in Go, `0.0.0.0` and `::` both mean all addresses of both families.
    Raises BadSetting if the address cannot be used.
    """
    loop = asyncio.get_running_loop()
    # With port 0, each family would get a different port.
    is_any = address.port and address.host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared
    host = None if is_any else address.host or None
    try:
        server = await loop.create_server(asyncio.Protocol, host, address.port, start_serving=False)
    except OSError as error:
        # asyncio's text repeats the address.  A failed name lookup has its reason in `strerror`.
        code = error.errno or 0
        why = os.strerror(code) if code > 0 else error.strerror
        message = f"cannot listen on {address.url} (OLLAMA_HOST): {why or error}"
        if error.errno == errno.EADDRINUSE:
            owner_text = await asyncio.to_thread(_describe_port_owner, address)
            message += f": {owner_text}; stop it, or set OLLAMA_HOST to another port"
        raise BadSetting(message) from error
    sockets = [socket.socket(fileno=os.dup(sock.fileno())) for sock in server.sockets]
    server.close()
    return sockets


def _describe_port_owner(address: HostAddress) -> str:
    """Return a text that names the process; only root sees other users' processes."""
    owner = find_listener(address)
    if owner is None:
        return "another server, perhaps Ollama itself, uses the port"
    return f"{'Ollama itself, ' if owner.name == 'ollama' else ''}{owner} uses the port"


def url_of(address: object) -> str:
    """Return a socket's address as a URL, or as `unix:` and a path."""
    match address:
        case (str(host), int(port), *_):
            return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        case bytes():
            return "unix:@" + address[1:].decode(errors="replace")
        case _:
            return f"unix:{address}"


def exposure(addresses: Iterable[object], settings: Settings) -> str:
    """Return a warning for the log; "" if a key is required or only this machine can connect.

    addresses: of the sockets: tuples that begin with a host and a port; others are unix sockets.
    """
    inet_addresses = [(one[0], one[1]) for one in addresses if isinstance(one, tuple)]
    for sentence, remedy in find_exposure(inet_addresses, settings):
        return f"{sentence}. {remedy[0].upper()}{remedy[1:]}"
    return ""


def listening_status(urls: str, addresses: Iterable[object], settings: Settings) -> str:
    """Return the beginning of the status line for `systemctl status`.

    urls: the addresses as text.
    """
    exposure_warning = exposure(addresses, settings)
    warning = "; WARNING: open to strangers, SPECD_API_KEYS is not set" if exposure_warning else ""
    return f"listening on {urls}{warning}"
