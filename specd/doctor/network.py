"""Check the port: whether it is free, who holds it, and who can connect."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning
from specd.doctor.service import HeldSocket
from specd.port_owner import find_listener
from specd.settings import HostAddress, Settings, find_exposure

_TOPIC: Final = "port"
_TIMEOUT_S: Final = 5.0
_OLLAMA_BANNER: Final = b"Ollama is running"
#: Addresses of all interfaces → the one to ask.
_LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def network(settings: Settings, held_socket: HeldSocket | None = None) -> Iterator[Finding]:
    """Yield the findings on the port.  held_socket: of an active specd.socket."""
    if held_socket is None:
        yield _port(settings.host)
    else:
        yield from _ports(held_socket)
        yield from _unused_host(settings, held_socket)
    hosts = held_socket.hosts if held_socket else (settings.host,)
    for words, remedy in find_exposure(((one.host, one.port) for one in hosts), settings):
        yield warning("network", words, remedy)


def _ports(held_socket: HeldSocket) -> Iterator[Finding]:
    """Yield the findings on the socket's ports, without starting the service."""
    if not held_socket.is_served:
        words = (
            f"specd.socket holds {' and '.join(held_socket.urls)}; the first request starts specd"
        )
        yield ok(_TOPIC, words)
        return
    yield from map(_port, held_socket.hosts)
    for url in held_socket.urls:
        if url.startswith("unix:"):
            yield ok(_TOPIC, f"specd.socket holds {url}")


def _unused_host(settings: Settings, held_socket: HeldSocket) -> Iterator[Finding]:
    """Yield a warning if OLLAMA_HOST differs from the socket's addresses."""
    host = settings.host
    bound = {(address.host, address.port) for address in held_socket.hosts}
    if "host" in settings.model_fields_set and (host.host, host.port) not in bound:
        words = (
            f"OLLAMA_HOST={host.host}:{host.port} has no effect: specd.socket listens on"
            f" {' and '.join(held_socket.urls)}"
        )
        remedy = (
            "change the address with `systemctl edit specd.socket`, or disable the socket:"
            " `systemctl disable --now specd.socket`"
        )
        yield warning("settings", words, remedy)


def _port(address: HostAddress) -> Finding:
    server = _server(address)
    if server is None:
        return absent(_TOPIC, f"{address.url} is free: no server listens there now")
    if server.startswith("specd/"):
        return ok(_TOPIC, f"{server.replace('/', ' ')} answers on {address.url}")
    who = find_listener(address)
    name = server or (str(who) if who else "another server")
    if server == "Ollama" and who:
        name = f"Ollama itself, {who}"
    remedy = "stop it, or set OLLAMA_HOST to another port"
    if server == "Ollama":
        remedy = "replace Ollama's service with `specd migrate`, or set OLLAMA_HOST"
    return problem(_TOPIC, f"{address.url} is taken by {name}", remedy)


def _server(address: HostAddress) -> str | None:
    """Return the Server header, "Ollama", "" for an unknown server, None for no answer."""
    host = _LOOPBACK.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        body = answer.read(len(_OLLAMA_BANNER))
    except (ConnectionRefusedError, socket.gaierror):
        return None
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    named = answer.headers.get("Server", "")
    return named or ("Ollama" if body == _OLLAMA_BANNER else "")
