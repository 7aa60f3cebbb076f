"""Check what systemd reports on the services of specd and Ollama, and on specd.socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning
from specd.install import CommandFailed, HostSystem
from specd.settings import HostAddress

_TOPIC: Final = "service"
_PROPERTIES: Final = (
    *("LoadState", "ActiveState", "UnitFileState", "NRestarts", "Result", "StatusText"),
    *("DropInPaths", "Listen"),
)
_TIMEOUT_S: Final = 10.0

#: Unit → its properties; empty if systemd does not run.
Show = Callable[[str], Mapping[str, str]]


def show(unit: str) -> Mapping[str, str]:
    """Return the properties from `systemctl show`; empty if systemd does not run or answer."""
    try:
        return HostSystem(timeout_s=_TIMEOUT_S).show(unit, *_PROPERTIES)
    except CommandFailed:
        return {}


def is_installed(unit: Mapping[str, str]) -> bool:
    return unit.get("LoadState") == "loaded"


def service(
    unit: Mapping[str, str], ollama: Mapping[str, str], socket: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the findings on the service.

    unit, ollama, socket: properties of specd.service, ollama.service and specd.socket.
    """
    if not unit:
        words = "systemd does not run here, or refuses this user"
        yield absent(_TOPIC, f"{words}: the rest is checked as this shell")
        return
    if not is_installed(unit):
        words = "specd is not installed as a service: it only runs with `specd serve`"
        yield absent(_TOPIC, f"{words}; `specd install` installs it")
    else:
        yield _state_finding(unit, socket)
        yield from _restarts(unit)
        yield from _socket(unit, socket)
        yield from _start_at_boot(unit, socket)
    yield from _ollama_finding(unit, ollama, socket)


def _start_at_boot(unit: Mapping[str, str], socket: Mapping[str, str]) -> Iterator[Finding]:
    starts = unit["UnitFileState"] in {"enabled", "static", "alias"}
    if starts or socket.get("UnitFileState") == "enabled":
        return
    words = "specd.service does not start at boot"
    if socket.get("ActiveState") == "active":
        words += ", and neither does specd.socket"
        yield warning(_TOPIC, words, "systemctl enable specd.socket")
    else:
        yield warning(_TOPIC, words, "systemctl enable specd")


def _state_finding(unit: Mapping[str, str], socket: Mapping[str, str]) -> Finding:
    state = unit["ActiveState"]
    if state == "inactive" and socket.get("ActiveState") == "active":
        words = "specd.service waits behind specd.socket, and starts with the first request"
        return ok(_TOPIC, words)
    if state == "active":
        return ok(_TOPIC, f"specd.service runs: {unit.get('StatusText') or 'no status yet'}")
    look = "`journalctl -u specd -e` shows why; `systemctl start specd` starts it"
    words = f"specd.service is {state}"
    if state == "failed":
        words += f" ({unit.get('Result')})"
    if state == "activating":
        return warning(_TOPIC, words, look)
    return problem(_TOPIC, words, look)


def _socket(unit: Mapping[str, str], socket: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if the socket failed, or cannot start while the service runs."""
    state = socket.get("ActiveState")
    again = "systemctl stop specd specd.socket; systemctl start specd.socket"
    if state == "failed":
        words = f"specd.socket failed ({socket.get('Result')}): it holds no address"
        yield problem(_TOPIC, words, f"`journalctl -u specd.socket -e` shows why; then {again}")
    elif socket.get("UnitFileState") == "enabled" and state == "inactive":
        runs = "; it cannot be started while the service runs" if _runs(unit) else ""
        words = f"specd.socket is enabled, but holds no address now{runs}"
        yield warning(_TOPIC, words, again)


def _runs(unit: Mapping[str, str]) -> bool:
    return unit.get("ActiveState") in {"active", "reloading"}


def _ollama_finding(
    unit: Mapping[str, str], ollama: Mapping[str, str], socket: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a finding if Ollama's service competes for the port and the memory."""
    over = "replace it with `specd migrate`; `--dry-run` shows the steps"
    if ollama.get("ActiveState") == "active":
        words = "Ollama's service also runs: the two compete for memory"
        yield warning(_TOPIC, words, over)
    elif ollama.get("ActiveState") in {"activating", "reloading"}:
        words = "Ollama's service tries to start, perhaps repeatedly: is its port taken?"
        yield warning(_TOPIC, words, over)
    elif _starts_by_itself(ollama) and (_starts_by_itself(unit) or _starts_by_itself(socket)):
        words = "Ollama's service starts at boot too: only one of the two gets the port"
        yield warning(_TOPIC, words, f"{over}; or systemctl disable one of them")


def _starts_by_itself(unit: Mapping[str, str]) -> bool:
    """Return whether Ollama starts at boot; `specd migrate` prevents it by a condition only."""
    is_held = "ollama.service.d/specd.conf" in unit.get("DropInPaths", "")
    return unit.get("UnitFileState") == "enabled" and not is_held


def _restarts(unit: Mapping[str, str]) -> Iterator[Finding]:
    n = unit.get("NRestarts", "0")
    if n not in {"", "0"}:
        words = f"systemd restarted it {n} time{'' if n == '1' else 's'} since its start"
        yield warning(_TOPIC, words, "`journalctl -u specd -p warning` shows why")


# --------------------------------------------------------------------------- specd.socket


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
    """Return the held socket, or None.  socket, service: properties of the units."""
    if socket.get("ActiveState") != "active":
        return None
    lines = socket.get("Listen", "").splitlines()
    stream = " (Stream)"
    addresses = tuple(line.removesuffix(stream) for line in lines if line.endswith(stream))
    return HeldSocket(addresses, is_served=_runs(service))


def _host(text: str) -> HostAddress | None:
    host, _, port = text.rpartition(":")
    if text.startswith(("/", "@", "vsock:")) or not port.isdecimal():
        return None
    return HostAddress("http", host.strip("[]"), int(port))


def _url(text: str) -> str:
    """Return a URL with the bound host, e.g. 0.0.0.0."""
    return f"http://{text}" if _host(text) is not None else f"unix:{text}"
