"""The port: whether it is free, who has it, and who may ask."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning
from specd.doctor.held import Held
from specd.port_holder import listener_on
from specd.settings import HostAddress, Settings, is_loopback

_TOPIC: Final = "port"
_PATIENCE_S: Final = 5.0
_OLLAMA: Final = b"Ollama is running"
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def network(settings: Settings, held: Held | None = None) -> Iterator[Finding]:
    """held: by specd.socket, where that is active."""
    if held is None:
        yield _port(settings.host)
    else:
        yield from _ports(held)
        yield from _unheard(settings, held)
    if not settings.api_keys:
        yield from _open(settings, held)


def _ports(held: Held) -> Iterator[Finding]:
    """Nobody is asked where the question would start the service."""
    if not held.is_served:
        words = f"specd.socket holds {' and '.join(held.urls)}; the first request starts specd"
        yield ok(_TOPIC, words)
        return
    yield from map(_port, held.hosts)
    for url in held.urls:
        if url.startswith("unix:"):
            yield ok(_TOPIC, f"specd.socket holds {url}")


def _unheard(settings: Settings, held: Held) -> Iterator[Finding]:
    """OLLAMA_HOST, where it says what systemd does not do."""
    asked = settings.host
    bound = {(address.host, address.port) for address in held.hosts}
    if "host" in settings.model_fields_set and (asked.host, asked.port) not in bound:
        words = (
            f"OLLAMA_HOST={asked.host}:{asked.port} has no effect: specd.socket listens, on"
            f" {' and '.join(held.urls)}"
        )
        remedy = (
            "`systemctl edit specd.socket` changes where, `systemctl disable --now specd.socket`"
            " gives it back to OLLAMA_HOST"
        )
        yield warning("settings", words, remedy)


def _open(settings: Settings, held: Held | None) -> Iterator[Finding]:
    """To whom, where no key is asked for."""
    hosts = [address.host for address in (held.hosts if held else (settings.host,))]
    if reached := [host or "this machine" for host in hosts if not is_loopback(host)]:
        yield warning(
            "network",
            f"whoever reaches {' or '.join(reached)} may use, pull and delete models:"
            " no key is asked for",
            "set SPECD_API_KEYS, or let a firewall decide who may ask",
        )
    if "*" in settings.origins:
        yield warning(
            "network",
            "every web page that a browser on this machine shows may use, pull and delete models"
            " (OLLAMA_ORIGINS=*): no key is asked for",
            "set SPECD_API_KEYS, or name the pages",
        )


def _port(address: HostAddress) -> Finding:
    server = _server(address)
    if server is None:
        return absent(_TOPIC, f"{address.url} is free: no server listens there now")
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
