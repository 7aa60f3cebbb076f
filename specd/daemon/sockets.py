"""The daemon's sockets: its own, or those that systemd holds for it (specd.socket)."""

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

# As many may connect while nobody accepts, as during a restart; the kernel has the last word.
BACKLOG = 4096

_Sockets = Sequence[socket.socket]


def apply_systemd_sockets(settings: Settings, systemd_sockets: _Sockets) -> Settings:
    """The settings with `host` as it is in truth: systemd's sockets decide, where there are any.

    Raises BadSetting for one that no client can connect to.
    """
    if not systemd_sockets:
        return settings
    for sock in systemd_sockets:
        is_stream = sock.type == socket.SOCK_STREAM
        if not is_stream or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise BadSetting(
                f"specd.socket hands over what is no listening stream ({sock.type.name}):"
                " ListenStream= and Accept=no are needed there"
            )
    hosts = [HostAddress("http", *_host_port(sock)) for sock in systemd_sockets if _is_inet(sock)]
    configured = settings.host
    if "host" in settings.model_fields_set and configured not in hosts:
        log.warning(
            "OLLAMA_HOST=%s:%d has no effect: specd.socket listens, on %s;"
            " `systemctl edit specd.socket` changes that, `systemctl disable --now specd.socket`"
            " gives it back to OLLAMA_HOST",
            configured.host,
            configured.port,
            " and ".join(map(_socket_url, systemd_sockets)),
        )
    # Who may call follows from it: the widest door counts.
    most_exposed = next((host for host in hosts if not is_loopback(host.host)), None)
    return settings.model_copy(update={"host": most_exposed or next(iter(hosts), configured)})


async def listen(
    server: web.AppRunner,
    settings: Settings,
    systemd_sockets: _Sockets = (),
    *,
    accept_backlog: int = 64,
) -> list[web.BaseSite]:
    """at_once: how many are accepted in a row.  Raises BadSetting where the address cannot be had.

    asyncio calls that the backlog, and accepts as many before anybody else has a turn.
    """
    sites: list[web.BaseSite] = []
    for sock in systemd_sockets or await _bind(settings.host):
        sites.append(web.SockSite(server, sock, backlog=accept_backlog))
        await sites[-1].start()
        sock.listen(BACKLOG)
    return sites


async def _bind(address: HostAddress) -> list[socket.socket]:
    """One for each family that the host has.

    All addresses of one family are those of both, as Go listens, whichever way it is written.
    """
    loop = asyncio.get_running_loop()
    # Each family would have a port of its own where any may be chosen.
    is_any = address.port and address.host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared
    host = None if is_any else address.host or None
    try:
        server = await loop.create_server(asyncio.Protocol, host, address.port, start_serving=False)
    except OSError as error:
        # asyncio's own words repeat the address; a name that is not found has its reason there.
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
    """The addresses it listens on, as a client writes them; the path of a unix socket."""
    return [_url(address) for address in server.addresses]


def _describe_port_owner(address: HostAddress) -> str:
    """In words; another user's process shows itself to root alone."""
    owner = find_listener(address)
    if owner is None:
        return "another server, perhaps Ollama itself, has the port"
    return f"{'Ollama itself, ' if owner.name == 'ollama' else ''}{owner} has the port"


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
