"""The port: whether it is free, who has it, and who may ask."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Final

from specd.doctor.finding import Finding, ok, problem, warning
from specd.port_holder import listener_on
from specd.settings import HostAddress, is_loopback

_TOPIC: Final = "port"
_PATIENCE_S: Final = 5.0
_OLLAMA: Final = b"Ollama is running"
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def network(address: HostAddress, *, n_keys: int) -> Iterator[Finding]:
    """n_keys: of SPECD_API_KEYS."""
    yield _port(address)
    if not n_keys and not is_loopback(address.host):
        yield warning(
            "network",
            f"whoever reaches {address.host or 'this machine'} may use, pull and delete models:"
            " no key is asked for",
            "set SPECD_API_KEYS, or let a firewall decide who may ask",
        )


def _port(address: HostAddress) -> Finding:
    server = _server(address)
    if server is None:
        return ok(_TOPIC, f"{address.url} is free: nobody serves there now")
    if server.startswith("specd/"):
        return ok(_TOPIC, f"{server.replace('/', ' ')} answers on {address.url}")
    who = listener_on(address)
    name = server or (str(who) if who else "another server")
    if server == "Ollama" and who:
        name = f"Ollama itself, {who}"
    remedy = "stop it, or set OLLAMA_HOST to another port"
    if server == "Ollama":
        remedy = "`specd migrate` takes over from Ollama's service; or set OLLAMA_HOST"
    return problem(_TOPIC, f"{address.url} is taken by {name}", remedy)


def _server(address: HostAddress) -> str | None:
    """What answers: a Server header, "Ollama", "" for a stranger; None where nobody does."""
    host = "127.0.0.1" if address.host in _EVERYWHERE - {"::"} else address.host or "::1"
    host = "::1" if host == "::" else host
    connection = http.client.HTTPConnection(host, address.port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        body = answer.read(len(_OLLAMA))
    except (ConnectionRefusedError, socket.gaierror):
        return None
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    named = answer.headers.get("Server", "")
    return named or ("Ollama" if body == _OLLAMA else "")
