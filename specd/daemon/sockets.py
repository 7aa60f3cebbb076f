"""The daemon's listening sockets: its own, or those of systemd (specd.socket)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence

from aiohttp import web

from specd.errors import BadSetting
from specd.port_owner import find_listener
from specd.settings import HostAddress, Settings, is_loopback

log = logging.getLogger(__name__)

# Connections that the kernel queues, for instance during a restart; the kernel may lower it.
BACKLOG = 4096

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
    hosts = [HostAddress("http", *_host_port(sock)) for sock in systemd_sockets if _is_inet(sock)]
    configured = settings.host
    if "host" in settings.model_fields_set and configured not in hosts:
        log.warning(
            "OLLAMA_HOST=%s:%d has no effect: specd.socket listens on %s. Change it with"
            " `systemctl edit specd.socket`, or run `systemctl disable --now specd.socket` to use"
            " OLLAMA_HOST",
            configured.host,
            configured.port,
            " and ".join(map(_socket_url, systemd_sockets)),
        )
    # The access rules follow from `host`, so the most exposed address counts.
    most_exposed = next((host for host in hosts if not is_loopback(host.host)), None)
    return settings.model_copy(update={"host": most_exposed or next(iter(hosts), configured)})


async def listen(
    server: web.AppRunner,
    settings: Settings,
    systemd_sockets: _Sockets = (),
    *,
    accept_backlog: int = 64,
) -> list[web.BaseSite]:
    """Listen on systemd's sockets, or else on the host of the settings; return the sites.

    accept_backlog: connections that asyncio accepts in a row before other tasks run.
    Raises BadSetting if the address cannot be used.
    """
    sites: list[web.BaseSite] = []
    for sock in systemd_sockets or await _bind(settings.host):
        sites.append(web.SockSite(server, sock, backlog=accept_backlog))
        await sites[-1].start()
        sock.listen(BACKLOG)
    return sites


async def _bind(address: HostAddress) -> list[socket.socket]:
    """Return one bound socket for each address family of the host.

    As in Go, `0.0.0.0` and `::` both mean all addresses of both families.
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


def listen_urls(server: web.AppRunner) -> list[str]:
    """Return the addresses as URLs, or `unix:` and a path."""
    return [_url(address) for address in server.addresses]


def _describe_port_owner(address: HostAddress) -> str:
    """Return a text that names the process; only root sees other users' processes."""
    owner = find_listener(address)
    if owner is None:
        return "another server, perhaps Ollama itself, uses the port"
    return f"{'Ollama itself, ' if owner.name == 'ollama' else ''}{owner} uses the port"


def _socket_url(sock: socket.socket) -> str:
    return _url(sock.getsockname())


def _url(address: object) -> str:
    match address:
        case (str(host), int(port), *_):
            return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        case bytes():
            return "unix:@" + address[1:].decode(errors="replace")
        case _:
            return f"unix:{address}"


def _is_inet(sock: socket.socket) -> bool:
    return sock.family in {socket.AF_INET, socket.AF_INET6}


def _host_port(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return host, port
