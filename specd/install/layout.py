"""Define the paths of the service.  All are absolute; a HostSystem adds its root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from specd.errors import InstallError

#: The program with its dependencies; the new and the former one are next to it.
ENVIRONMENT: Final = "/opt/specd"
STAGED: Final = "/opt/specd.new"
FORMER: Final = "/opt/specd.old"

UNITS: Final = "/etc/systemd/system"
SERVICE: Final = "specd.service"
SOCKET: Final = "specd.socket"
OLLAMA: Final = "ollama.service"

CONFIG: Final = "/etc/specd"
ENV_FILE: Final = f"{CONFIG}/specd.env"
#: Variables from Ollama's own EnvironmentFile=, after a migration.
OLLAMA_ENV_FILE: Final = f"{CONFIG}/ollama.env"
#: Makes specd replace Ollama: its user, its store, its settings.
DROP_IN: Final = f"{UNITS}/{SERVICE}.d/ollama.conf"
#: Prevents a start of Ollama; the only file that specd adds to Ollama's own.
PAUSE: Final = f"{UNITS}/{OLLAMA}.d/specd.conf"

COMMAND: Final = "/usr/local/bin/specd"
STATE: Final = "/var/lib/specd"
USER: Final = "specd"
#: The owners of GPU device nodes; systemd/sysusers.d creates missing ones.
GPU_GROUPS: Final = ("render", "video")

#: Only root can write it, because `specd uninstall` trusts it.
RECORD: Final = "/var/lib/specd-install/installed.json"

#: Folders hidden by ProtectHome= and PrivateTmp= of specd.service.
HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
HOMES: Final = HIDDEN[:3]

_TARGETS: Final = {
    "*.service": UNITS,
    "*.socket": UNITS,
    "sysusers.d/*.conf": "/etc/sysusers.d",
    "tmpfiles.d/*.conf": "/etc/tmpfiles.d",
}
SYSUSERS: Final = "/etc/sysusers.d/specd.conf"
TMPFILES: Final = "/etc/tmpfiles.d/specd.conf"


@dataclass(frozen=True, slots=True)
class ShippedFiles:
    """The files that specd ships for systemd.

    files: path on the machine → content.  env_file: every setting, commented out.
    """

    files: Mapping[str, bytes]
    env_file: bytes


def shipped() -> ShippedFiles:
    """Return the shipped files.  Raises InstallError if the package lacks them."""
    files = {
        f"{target}/{path.name}": path.read_bytes()
        for pattern, target in _TARGETS.items()
        for path in sorted(packaged("systemd").glob(pattern))
    }
    if f"{UNITS}/{SERVICE}" not in files:
        raise InstallError(f"this copy of specd lacks its units ({packaged('systemd')})")
    return ShippedFiles(files, (packaged("configs") / "specd.env").read_bytes())


def packaged(name: str) -> Path:
    """Return the path of `configs`, `systemd` or `docs`.

    An installed package contains them; in a checkout they are next to the package.
    """
    package = Path(str(resources.files("specd")))
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def is_below(path: str | Path, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
