"""Where everything of the service lies.  Paths are absolute; a Machine puts them below its root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from specd.errors import InstallError

#: The program, with all it needs; what is made aside, and the one before, stand beside it.
ENVIRONMENT: Final = "/opt/specd"
STAGED: Final = "/opt/specd.new"
FORMER: Final = "/opt/specd.old"

UNITS: Final = "/etc/systemd/system"
SERVICE: Final = "specd.service"
SOCKET: Final = "specd.socket"
OLLAMA: Final = "ollama.service"

CONFIG: Final = "/etc/specd"
ENV_FILE: Final = f"{CONFIG}/specd.env"
#: What Ollama's own EnvironmentFile= said, after a migration.
OLLAMA_ENV_FILE: Final = f"{CONFIG}/ollama.env"
#: How specd works in Ollama's place: its user, its store, its settings.
DROP_IN: Final = f"{UNITS}/{SERVICE}.d/ollama.conf"
#: Keeps Ollama from being started meanwhile; the one file that is ever laid beside Ollama's own.
PAUSE: Final = f"{UNITS}/{OLLAMA}.d/specd.conf"

COMMAND: Final = "/usr/local/bin/specd"
STATE: Final = "/var/lib/specd"
USER: Final = "specd"
#: What owns the nodes of GPUs; systemd/sysusers.d makes those that are not there.
GPU_GROUPS: Final = ("render", "video")

#: Root's alone: the service must not be able to write what `specd uninstall` believes.
RECORD: Final = "/var/lib/specd-install/installed.json"

#: What ProtectHome= and PrivateTmp= of specd.service hide.
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
    """What specd brings for systemd.

    files: by the path they are put at.  env_file: every setting, commented out.
    """

    files: Mapping[str, bytes]
    env_file: bytes

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(path for path in self.files if path.startswith(f"{UNITS}/"))


def shipped() -> ShippedFiles:
    """Raises InstallError where the package lacks it."""
    files = {
        f"{target}/{path.name}": path.read_bytes()
        for pattern, target in _TARGETS.items()
        for path in sorted(packaged("systemd").glob(pattern))
    }
    if f"{UNITS}/{SERVICE}" not in files:
        raise InstallError(f"this copy of specd lacks its units ({packaged('systemd')})")
    return ShippedFiles(files, (packaged("configs") / "specd.env").read_bytes())


def packaged(name: str) -> Path:
    """`configs`, `systemd`, `docs`: inside the package when installed, beside it in a checkout."""
    package = Path(str(resources.files("specd")))
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def is_below(path: str | Path, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
