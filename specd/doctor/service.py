"""Check what systemd reports on the services of specd and Ollama."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning

_TOPIC: Final = "service"
_PROPERTIES: Final = (
    "LoadState,ActiveState,UnitFileState,NRestarts,Result,StatusText,DropInPaths,Listen"
)
_TIMEOUT_S: Final = 10.0

#: Unit → its properties; empty if systemd does not run.
Show = Callable[[str], Mapping[str, str]]


def show(unit: str) -> Mapping[str, str]:
    """Return the properties from `systemctl show`; empty if systemd does not run or answer.

    A property that occurs several times (Listen) becomes one value with a line each.
    """
    if shutil.which("systemctl") is None:
        return {}
    command = ["systemctl", "show", unit, "-p", _PROPERTIES]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode:
        return {}
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, is_property, value = line.partition("=")
        if is_property:
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


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
        starts = socket.get("UnitFileState"), unit["UnitFileState"]
        if starts[0] != "enabled" and starts[1] not in {"enabled", "static", "alias"}:
            words = "specd.service does not start at boot"
            if socket.get("ActiveState") == "active":
                words, remedy = (
                    f"{words}, and neither does specd.socket",
                    "systemctl enable specd.socket",
                )
            else:
                remedy = "systemctl enable specd"
            yield warning(_TOPIC, words, remedy)
    yield from _ollama_finding(unit, ollama, socket)


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
    return unit["ActiveState"] in {"active", "reloading"}


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
