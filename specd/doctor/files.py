"""The store and what else specd reads and writes, as whoever runs it may."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning
from specd.errors import SpecdError
from specd.settings import Settings
from specd.store import Library, Name

#: Below this no model worth its name can be pulled.
_LITTLE_BYTES: Final = 5 * 2**30
#: Below this what was learned, written anew beside itself, may not fit.
_STATE_BYTES: Final = 4 * 2**20
#: So many are named; the rest are counted.
_MANY: Final = 5
#: What ProtectHome= of specd.service closes.
_HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))


def store(models: Path, library: Library) -> Iterator[Finding]:
    """Raises nothing: a store that cannot be read is a finding."""
    topic = "store"
    # Not by Path: below a closed folder that raises.
    if not os.path.exists(models):  # noqa: PTH110
        yield _missing_store(models)
        return
    if not os.access(models, os.R_OK | os.X_OK):
        yield problem(topic, f"{models} may not be read by {_user()}", _FILES_ARE_READABLE)
        return
    names = library.names()
    kept = [name for name in names if name.path(models / "manifests").exists()]
    yield ok(topic, f"{len(kept)} model{'' if len(kept) == 1 else 's'} in {models}")
    if broken := list(_broken(names, library)):
        words = "; ".join(broken[:_MANY]) + ("; ..." if len(broken) > _MANY else "")
        yield problem(topic, f"{len(broken)} cannot be served: {words}", "pull them again")
    yield from _free_space(models)


_FILES_ARE_READABLE = "set OLLAMA_MODELS, or let the user that runs specd read and write it"
_EDIT: Final = "`systemctl edit specd` with [Service]"


def _missing_store(models: Path) -> Finding:
    """Not there, or not to be seen from here."""
    if hidden := hidden_home(models):
        words = f"{models} is not to be seen: the service's sandbox hides {hidden}"
        # ReadWritePaths= alone opens nothing below a ProtectHome=yes, nor does BindPaths=.
        remedy = (
            f"let there be a folder {models} that {_user()} may write; then {_EDIT}"
            f" ProtectHome=tmpfs and, on a line of its own, BindPaths={models}"
        )
        return problem("store", words, remedy)
    nearest = next(parent for parent in models.parents if os.path.exists(parent))  # noqa: PTH110
    if os.access(nearest, os.W_OK):
        return absent("store", f"{models} is not there yet: the first pull makes it")
    words = f"{models} is not there and cannot be made"
    if not _is_read_only(nearest):
        return problem("store", words, _FILES_ARE_READABLE)
    return problem("store", words, f"make it, let {_user()} write it, and {_store_folders(models)}")


def hidden_home(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Path | None:
    """Which of the homes ProtectHome= closed (yes) or laid an empty folder over (tmpfs).

    path: one that is not to be seen.
    """
    home = next((home for home in _HOMES if path.is_relative_to(home)), None)
    try:
        if home is None or stat.S_IMODE(home.stat().st_mode) == 0:
            return home
        lines = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return None
    kinds = [line[line.index("-") + 1] for line in lines if line[4] == str(home)]
    if kinds[-1:] != ["tmpfs"]:
        return None
    # A machine may have its homes on a tmpfs: whoever has one there makes folders in it.
    nearest = next(parent for parent in path.parents if os.path.exists(parent))  # noqa: PTH110
    return home if nearest == home or not os.access(nearest, os.W_OK) else None


def _broken(names: Sequence[Name], library: Library) -> Iterator[str]:
    for name in names:
        try:
            library.resolve(name.full)
        except SpecdError as error:
            yield f"{name.short}: {error}"


def _free_space(models: Path) -> Iterator[Finding]:
    if closed := list(_unwritable_folders(models)):
        where = "" if closed[0] == models else f" ({closed[0]})"
        words = f"{models} may not be written by {_user()}{where}: nothing can be pulled, made"
        yield warning("store", f"{words} or deleted", _remedy(models, closed))
        return
    free = shutil.disk_usage(models).free
    words = f"{free / 2**30:.1f} GiB are free on its disk"
    if free < _LITTLE_BYTES:
        yield warning("store", words, "`specd rm` models that nobody uses")
    else:
        yield ok("store", words)


def _unwritable_folders(models: Path) -> Iterator[Path]:
    """Folders that a pull, a copy or a deletion writes in, and may not."""
    blobs, manifests = models / "blobs", models / "manifests"
    parts = [part for part in (blobs, manifests) if part.exists()]
    # What is missing is made in the store itself, and so is a manifest, beside those on its disk.
    if len(parts) < 2 or manifests.stat().st_dev == models.stat().st_dev:
        parts.insert(0, models)
    for folder in [*parts, *(Path(at) for at, _, _ in list(os.walk(manifests))[1:])]:
        if not os.access(folder, os.W_OK | os.X_OK):
            yield folder


def _remedy(models: Path, closed: Sequence[Path]) -> str:
    """What closes the store to a service is most often its unit, not a folder's mode."""
    if any(map(_is_read_only, closed)):
        return f"it lies on what is read-only; for the service, {_store_folders(models)}"
    return f"let the user that runs specd write {closed[0]}"


def _store_folders(models: Path) -> str:
    """The whole store, and where links in it lead."""
    parts = [(models / name).resolve() for name in ("blobs", "manifests")]
    beyond = [str(part) for part in parts if not part.is_relative_to(models.resolve())]
    return f"{_EDIT} ReadWritePaths={' '.join([str(models), *beyond])}"


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


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
    if is_full := _is_full(nearest):
        words = f"the disk of {folder} is full ({is_full}): what is learned is lost at a restart"
        return warning("state", words, "make room there, or set SPECD_STATE_DIR to another disk")
    return ok("state", f"what is learned is kept in {folder}")


def _is_full(folder: Path) -> str:
    """What is missing for a few small files, as who is not root has it; "" for nothing."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < _STATE_BYTES:
        return f"{free / 2**20:.1f} MiB are free"
    # Where files are not numbered (btrfs) both are 0.
    return "no file can be added" if disk.f_files and not disk.f_favail else ""


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
