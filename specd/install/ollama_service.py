"""Read the Ollama service: its user, its settings, its store."""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specd.daemon_address import strip_quotes
from specd.errors import InstallError
from specd.install import layout
from specd.install.host_system import HostSystem
from specd.install.systemd_syntax import check_text
from specd.install.unit_settings import UnitSettings, ask_systemd

#: Variables for devices and proxies that Ollama honours, and specd too.
_COPIED_VARIABLES: Final = re.compile(
    r"OLLAMA_\w+|CUDA_VISIBLE_DEVICES|(HIP|ROCR)_VISIBLE_DEVICES|GGML_VK_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|HSA_OVERRIDE_GFX_VERSION|LLAMA_ARG_\w+|HOME|SSL_CERT_(FILE|DIR)"
    r"|((HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy)"
)
#: Variables that are left out without a remark.
_USUAL_VARIABLES: Final = frozenset({"PATH", "LD_LIBRARY_PATH", "LANG"})
_STORE: Final = "OLLAMA_MODELS"


@dataclass(frozen=True)
class OllamaService:
    """Ollama as it is set up on this machine.

    user, group: owners of the store.  environment: variables of its units, and the store's path;
    file_environment: those of its EnvironmentFile=, which have priority but name no other store.
    folders: writable folders, with links resolved.  umask: octal digits.
    n_models: manifests in the store.
    """

    user: str
    group: str
    store: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    file_environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    umask: str = "0022"
    n_models: int = 0

    @property
    def variables(self) -> dict[str, str]:
        return {**self.environment, **self.file_environment}

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Return the folders that ProtectHome= would hide."""
        return tuple(path for path in self.folders if layout.is_below(path, layout.HOMES))


def read_ollama_service(
    machine: HostSystem, store: Path | None = None, settings: UnitSettings | None = None
) -> OllamaService:
    """Return ollama.service with its drop-ins.

    store: replaces its own store.  settings: None asks systemd.  Raises InstallError.
    """
    settings = settings or ask_systemd(machine)
    if settings.has_dynamic_user:
        raise InstallError(
            "ollama.service has DynamicUser=yes: its store belongs to a user that exists only while"
            " it runs; give it a user of its own (systemctl edit ollama: DynamicUser=no, User=...)"
        )
    from_files = settings.read_files(machine)
    user, of_user = _user(settings.user or "root")
    both = {**settings.environment, **from_files}
    home = Path(strip_quotes(both.get("HOME", "")) or of_user)
    place = store or Path(strip_quotes(both.get(_STORE, "")) or home / ".ollama" / "models")
    names = sorted(set(both) - _USUAL_VARIABLES)
    return _checked(
        OllamaService(
            user=user,
            group=settings.group or _group(user),
            store=place,
            environment={**_copied_variables(settings.environment), _STORE: str(place)},
            file_environment=_copied_variables(from_files, but=_STORE),
            left_out=tuple(name for name in names if not _COPIED_VARIABLES.fullmatch(name)),
            folders=_folders(machine, place, home),
            umask=settings.umask or "0022",
            n_models=_count(machine.at(str(place))),
        ),
        machine,
    )


def service_of_store(machine: HostSystem, store: Path) -> OllamaService:
    """Return the service for a store of a user's own `ollama serve`, without ollama.service."""
    path = machine.at(check_text(str(store)))
    if not path.is_dir():
        raise InstallError(f"there is no store at {store}")
    owner = pwd.getpwuid(path.stat().st_uid)
    found = OllamaService(
        user=owner.pw_name,
        group=_group(owner.pw_name),
        store=store,
        environment={_STORE: str(store)},
        folders=_folders(machine, store, Path(owner.pw_dir)),
        n_models=_count(path),
    )
    return _checked(found, machine)


def _checked(found: OllamaService, machine: HostSystem) -> OllamaService:
    for path in (found.store, *found.folders):  # before any of them is printed
        check_text(str(path))
    if found.user == "root":
        raise InstallError(
            f"Ollama works as root here, and its store {found.store} is root's; specd's service"
            " never is root.  Give the store to a user (chown -R), and ollama.service too"
            " (systemctl edit ollama: User=, Group=), then try again"
        )
    if not machine.at(str(found.store)).is_dir():
        raise InstallError(
            f"Ollama's store {found.store} is not there: is its disk mounted?"
            "  (--store names another one)"
        )
    if layout.is_below(found.store.resolve(), layout.HIDDEN[3:]):
        raise InstallError(f"the store {found.store} lies in a folder for temporary files")
    return found


def _copied_variables(variables: Mapping[str, str], *, but: str = "") -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if _COPIED_VARIABLES.fullmatch(name) and name != but
    }


def _user(name: str) -> tuple[str, str]:
    """Return name and home of a user, who may be given as a number."""
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError as error:
        raise InstallError(f"ollama.service runs as {name}, and there is no such user") from error
    return found.pw_name, found.pw_dir


def _group(user: str) -> str:
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


def _folders(machine: HostSystem, store: Path, home: Path) -> tuple[Path, ...]:
    """Return store and keys and the targets of links in them; none contains another."""
    wanted = (store, store / "blobs", store / "manifests", home / ".ollama")
    real = {
        Path("/") / path.resolve().relative_to(machine.root.resolve())
        for path in (machine.at(str(folder)) for folder in wanted)
        if path.is_dir()
    }
    return tuple(sorted(path for path in real if not real & set(path.parents)))


def _count(store: Path) -> int:
    return sum(path.is_file() for path in store.joinpath("manifests").rglob("*"))
