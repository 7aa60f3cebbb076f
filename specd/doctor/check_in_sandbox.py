"""Run the doctor inside the service's own sandbox: its user, its settings, its devices.

A shell has other groups than the unit, sees /home and all device nodes.  So systemd runs `specd
doctor --here --json` once, in a unit with the [Service] section of the real one, including
drop-ins, and another command.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from specd.doctor.finding import Finding, problem
from specd.doctor.held_socket import HeldSocket

UNIT: Final = "specd-doctor.service"
_TIMEOUT_S: Final = 120.0
#: An empty value clears what the real unit says.
_OTHERWISE: Final = """
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
ExecStart={command} doctor --here --json{held}
StandardOutput=truncate:{output}
StandardError=journal
SuccessExitStatus=0 1
TimeoutStartSec={patience:.0f}
"""


def transient_unit(shipped: str, output: Path, held_socket: HeldSocket | None = None) -> str:
    """Return the transient unit.  shipped: the output of `systemctl cat`.

    held_socket: the socket of specd.socket; the sandbox has no bus to ask for it.
    Raises ValueError if the unit has no command.
    """
    service = _section("Service", shipped)
    starts = [line.partition("=")[2] for line in service if line.startswith("ExecStart=")]
    command = next((start for start in reversed(starts) if start.strip()), "").split()
    if not command:
        raise ValueError("specd.service has no ExecStart=")
    otherwise = _OTHERWISE.format(
        command=command[0].lstrip("@-:+!"),
        held=_words(held_socket),
        output=output,
        patience=_TIMEOUT_S,
    )
    return "\n".join(["[Service]", *service]) + otherwise


def _words(held_socket: HeldSocket | None) -> str:
    """Return arguments for a unit's command, where `%` starts a specifier and `$` a variable."""
    if held_socket is None:
        return ""
    words = [f" --socket {_quoted(address)}" for address in held_socket.addresses]
    return "".join([*words, *([] if held_socket.is_served else [" --socket-waits"])])


def _quoted(word: str) -> str:
    for sign, escaped in {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"}.items():
        word = word.replace(sign, escaped)
    return f'"{word}"'


def _section(name: str, unit: str) -> list[str]:
    """Return the lines of this section from every part of the unit."""
    lines, here = [], False
    for line in unit.splitlines():
        if line.startswith("[") and line.rstrip().endswith("]"):
            here = line.strip() == f"[{name}]"
        elif here:
            lines.append(line)
    return lines


def sandbox_findings(held_socket: HeldSocket | None, run_dir: Path = Path("/run")) -> list[Finding]:
    """Return the doctor's findings inside the sandbox; needs root.

    A sandbox that does not start is a finding.
    """
    output = run_dir / "specd-doctor.json"
    unit = run_dir / "systemd/system" / UNIT
    try:
        shipped = _systemctl("cat", "specd.service")
        unit.write_text(transient_unit(shipped, output, held_socket), encoding="utf-8")
        try:
            _systemctl("daemon-reload")
            _systemctl("start", UNIT)
            return msgspec.json.decode(output.read_bytes(), type=list[Finding])
        finally:
            unit.unlink(missing_ok=True)
            output.unlink(missing_ok=True)
            _systemctl("daemon-reload")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        words = f"cannot run the doctor inside the service's sandbox: {str(said).strip()}"
        return [problem("service", words, f"`journalctl -u {UNIT}` says why")]


def _systemctl(*words: str) -> str:
    command = ["systemctl", "--no-pager", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S + 10, check=True
    )
    return done.stdout
