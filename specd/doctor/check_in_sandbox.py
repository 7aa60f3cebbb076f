"""Run the doctor inside the service's own sandbox: its user, its settings, its devices.

A shell has other groups than the unit, sees /home and all device nodes.  So systemd runs `specd
doctor --here --json` once, in a unit with the [Service] section of the real one, including
drop-ins, and another command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from specd.doctor.finding import Finding, problem
from specd.doctor.service import HeldSocket
from specd.install import CommandFailed, HostSystem

UNIT: Final = "specd-doctor.service"
_TIMEOUT_S: Final = 120.0
#: An empty value clears the real unit's.
_OVERRIDES: Final = """
Type=oneshot
Restart=no
WatchdogSec=0
RemainAfterExit=no
ExecStart=
ExecStartPre=
ExecStartPost=
ExecReload=
ExecStop=
ExecStopPost=
RuntimeDirectory=
ExecStart={command} doctor --here --json{socket}
StandardOutput=truncate:{output}
StandardError=journal
SuccessExitStatus=0 1
TimeoutStartSec={timeout_s:.0f}
"""


def transient_unit(shipped: str, output: Path, held_socket: HeldSocket | None = None) -> str:
    """Return the transient unit.  shipped: the output of `systemctl cat`.

    held_socket: the socket of specd.socket; the sandbox has no bus to ask for it.
    Raises ValueError if the unit has no command.
    """
    service, section = [], ""
    for line in shipped.splitlines():
        if line.startswith("[") and line.rstrip().endswith("]"):
            section = line.strip()
        elif section == "[Service]":
            service.append(line)
    lines = [line.partition("=") for line in service]
    commands = [command for name, _, command in lines if name == "ExecStart"]
    program = next((command for command in reversed(commands) if command.strip()), "").split()
    if not program:
        raise ValueError("specd.service has no ExecStart=")
    overrides = _OVERRIDES.format(
        command=program[0].lstrip("@-:+!"),
        socket=_socket_options(held_socket) if held_socket else "",
        output=output,
        timeout_s=_TIMEOUT_S,
    )
    return "\n".join(["[Service]", *service]) + overrides


def _socket_options(held_socket: HeldSocket) -> str:
    """Return options for a unit's command, where `%` starts a specifier and `$` a variable."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"})
    addresses = [f' --socket "{address.translate(escapes)}"' for address in held_socket.addresses]
    return "".join([*addresses, "" if held_socket.is_served else " --socket-waits"])


def sandbox_findings(held_socket: HeldSocket | None, run_dir: Path = Path("/run")) -> list[Finding]:
    """Return the doctor's findings inside the sandbox; needs root.

    A sandbox that does not start is a finding.
    """
    output = run_dir / "specd-doctor.json"
    unit = run_dir / "systemd/system" / UNIT
    machine = HostSystem(timeout_s=_TIMEOUT_S + 10)
    try:
        shipped = machine.run("systemctl", "cat", "specd.service")
        unit.write_text(transient_unit(shipped, output, held_socket), encoding="utf-8")
        try:
            machine.run("systemctl", "daemon-reload")
            machine.run("systemctl", "start", UNIT)
            return msgspec.json.decode(output.read_bytes(), type=list[Finding])
        finally:
            unit.unlink(missing_ok=True)
            output.unlink(missing_ok=True)
            machine.run("systemctl", "daemon-reload")
    except (OSError, ValueError, CommandFailed) as error:
        words = f"cannot run the doctor inside the service's sandbox: {error}"
        return [problem("service", words, f"`journalctl -u {UNIT}` says why")]
