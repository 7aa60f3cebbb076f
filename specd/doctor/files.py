"""The store and what else specd reads and writes, as whoever runs it may."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specd.doctor.finding import Finding, ok, problem, warning
from specd.errors import SpecdError
from specd.settings import Settings
from specd.store import Library, Name

#: Below this no model worth its name can be pulled.
_LITTLE_BYTES: Final = 5 * 2**30
#: So many are named; the rest are counted.
_MANY: Final = 5


def store(models: Path, library: Library) -> Iterator[Finding]:
    """Raises nothing: a store that cannot be read is a finding."""
    topic = "store"
    # Not by Path: below a closed folder that raises.
    if not os.path.exists(models):  # noqa: PTH110
        nearest = next(parent for parent in models.parents if os.path.exists(parent))  # noqa: PTH110
        if os.access(nearest, os.W_OK):
            yield ok(topic, f"{models} is not there yet: the first pull makes it")
        else:
            yield problem(topic, f"{models} is not there and cannot be made", _READABLE)
        return
    if not os.access(models, os.R_OK | os.X_OK):
        yield problem(topic, f"{models} may not be read by {_user()}", _READABLE)
        return
    names = library.names()
    kept = [name for name in names if name.path(models / "manifests").exists()]
    yield ok(topic, f"{len(kept)} model{'' if len(kept) == 1 else 's'} in {models}")
    if broken := list(_broken(names, library)):
        words = "; ".join(broken[:_MANY]) + ("; ..." if len(broken) > _MANY else "")
        yield problem(topic, f"{len(broken)} cannot be served: {words}", "pull them again")
    yield from _room(models)


_READABLE = "set OLLAMA_MODELS, or let the user that runs specd read and write it"


def _broken(names: Sequence[Name], library: Library) -> Iterator[str]:
    for name in names:
        try:
            library.resolve(name.full)
        except SpecdError as error:
            yield f"{name.short}: {error}"


def _room(models: Path) -> Iterator[Finding]:
    blobs = models / "blobs"
    folder = blobs if blobs.exists() else models
    if not os.access(folder, os.W_OK):
        words = f"{models} may not be written by {_user()}: nothing can be pulled, made or deleted"
        yield warning("store", words, _remedy(folder))
        return
    free = shutil.disk_usage(models).free
    words = f"{free / 2**30:.1f} GiB are free on its disk"
    if free < _LITTLE_BYTES:
        yield warning("store", words, "`specd rm` models that nobody uses")
    else:
        yield ok("store", words)


def _remedy(folder: Path) -> str:
    """What closes the folder to a service is most often its unit, not the folder's mode."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return (
            f"it lies on what is read-only; for the service, `systemctl edit specd` with [Service]"
            f" ReadWritePaths={folder}"
        )
    return "let the user that runs specd write it"


def state(settings: Settings) -> Finding:
    """Where what is learned is kept."""
    folder = settings.state_dir
    if folder is None:
        words = "no home, so nothing that is learned of the pairs is kept"
        return warning("state", words, "set SPECD_STATE_DIR")
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        words = (
            f"{folder} may not be written by {_user()}: what is learned is lost at every restart"
        )
        return warning("state", words, "set SPECD_STATE_DIR to a folder of that user's")
    return ok("state", f"what is learned is kept in {folder}")


def secrets(settings: Settings) -> Iterator[Finding]:
    """Keys in a file that everybody may read."""
    path = settings.env_file
    try:
        is_open = path is not None and path.stat().st_mode & 0o004
        has_keys = is_open and "SPECD_API_KEYS=" in _active(path)
    except OSError:
        return
    if has_keys:
        words = f"{path} holds keys, and every user of this machine may read it"
        yield warning("keys", words, f"chmod o-r {path}")


def _active(path: Path | None) -> str:
    """The file without its comments."""
    lines = path.read_text(errors="replace").splitlines() if path is not None else []
    return "\n".join(line for line in lines if not line.lstrip().startswith(("#", ";")))


def _user() -> str:
    import pwd  # noqa: PLC0415 - POSIX alone has it

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"
