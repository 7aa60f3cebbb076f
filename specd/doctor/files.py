"""Check the store and the other files that specd reads and writes, as the current user."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specd.doctor.finding import Finding, absent, ok, problem, warning
from specd.errors import SpecdError
from specd.install.layout import HOMES
from specd.settings import Settings
from specd.store import Library, Name

#: With less free space, hardly any model can be pulled.
_LITTLE_BYTES: Final = 5 * 2**30
#: With less free space, rewriting the history may fail.
_STATE_BYTES: Final = 4 * 2**20
#: How many names are printed; the rest are counted.
_MANY: Final = 5


def store(models: Path, library: Library) -> Iterator[Finding]:
    """Yield the findings on the store; raises nothing, since an unreadable store is a finding."""
    topic = "store"
    # Path methods raise below a folder without permission.
    if not os.path.exists(models):  # noqa: PTH110
        yield _missing_store(models)
        return
    if not os.access(models, os.R_OK | os.X_OK):
        yield problem(topic, f"{_user()} cannot read {models}", _GIVE_ACCESS)
        return
    names = library.names()
    complete = [name for name in names if name.path(models / "manifests").exists()]
    yield ok(topic, f"{len(complete)} model{'' if len(complete) == 1 else 's'} in {models}")
    if broken := list(_broken(names, library)):
        words = "; ".join(broken[:_MANY]) + ("; ..." if len(broken) > _MANY else "")
        yield problem(topic, f"{len(broken)} cannot be served: {words}", "pull them again")
    yield from _free_space(models)


_GIVE_ACCESS = "set OLLAMA_MODELS, or give the user that runs specd read and write access"
_LOST: Final = "the history of the pairs is lost at every restart"
_EDIT: Final = "`systemctl edit specd` with [Service]"


def _missing_store(models: Path) -> Finding:
    """Return the finding for a store that does not exist or is hidden."""
    if hidden := hidden_home(models):
        words = f"{models} is not visible: the service's sandbox hides {hidden}"
        # Neither ReadWritePaths= nor BindPaths= opens a folder below ProtectHome=yes.
        remedy = (
            f"make sure that {models} exists and that {_user()} can write to it; then {_EDIT}"
            f" ProtectHome=tmpfs and, on a line of its own, BindPaths={models}"
        )
        return problem("store", words, remedy)
    nearest = next(parent for parent in models.parents if os.path.exists(parent))  # noqa: PTH110
    if os.access(nearest, os.W_OK):
        return absent("store", f"{models} does not exist yet: the first pull creates it")
    words = f"{models} does not exist and cannot be created"
    if not _is_read_only(nearest):
        return problem("store", words, _GIVE_ACCESS)
    return problem(
        "store", words, f"create it, give {_user()} write access, and {_store_folders(models)}"
    )


def hidden_home(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Path | None:
    """Return the home folder that ProtectHome= hides (yes) or covers with an empty one (tmpfs).

    path: a path that is not visible.
    """
    home = next((home for home in map(Path, HOMES) if path.is_relative_to(home)), None)
    try:
        if home is None or stat.S_IMODE(home.stat().st_mode) == 0:
            return home
        lines = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return None
    kinds = [line[line.index("-") + 1] for line in lines if line[4] == str(home)]
    if kinds[-1:] != ["tmpfs"]:
        return None
    # The machine itself may have a tmpfs at /home; then it contains the users' folders.
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
        words = f"{_user()} cannot write to {models}{where}: pull, create and delete will fail"
        yield warning("store", words, _remedy(models, closed))
        return
    free = shutil.disk_usage(models).free
    words = f"{free / 2**30:.1f} GiB are free on the disk of the store"
    if free < _LITTLE_BYTES:
        yield warning("store", words, "remove unused models with `specd rm`")
    else:
        yield ok("store", words)


def _unwritable_folders(models: Path) -> Iterator[Path]:
    """Yield folders to which pull, copy and delete must write, but cannot."""
    blobs, manifests = models / "blobs", models / "manifests"
    parts = [part for part in (blobs, manifests) if part.exists()]
    # Missing folders are created in the store, and a manifest next to others on its disk.
    if len(parts) < 2 or manifests.stat().st_dev == models.stat().st_dev:
        parts.insert(0, models)
    for folder in [*parts, *(Path(at) for at, _, _ in list(os.walk(manifests))[1:])]:
        if not os.access(folder, os.W_OK | os.X_OK):
            yield folder


def _remedy(models: Path, closed: Sequence[Path]) -> str:
    """Return the remedy: usually it is the unit that makes a store read-only, not a mode."""
    if any(map(_is_read_only, closed)):
        return f"it is on a read-only file system; for the service, {_store_folders(models)}"
    return f"give the user that runs specd write access to {closed[0]}"


def _store_folders(models: Path) -> str:
    """Return an advice to open the whole store and the targets of links in it."""
    parts = [(models / name).resolve() for name in ("blobs", "manifests")]
    beyond = [str(part) for part in parts if not part.is_relative_to(models.resolve())]
    return f"{_EDIT} ReadWritePaths={' '.join([str(models), *beyond])}"


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def state(settings: Settings) -> Finding:
    """Return the finding on the folder of the histories."""
    folder = settings.state_dir
    if folder is None:
        return warning("state", f"the user has no home: {_LOST}", "set SPECD_STATE_DIR")
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        words = f"{_user()} cannot write to {folder}: {_LOST}"
        return warning("state", words, "set SPECD_STATE_DIR to a folder of that user")
    if why := _is_full(nearest):
        words = f"the disk of {folder} is full ({why}): {_LOST}"
        remedy = "free some space there, or set SPECD_STATE_DIR to another disk"
        return warning("state", words, remedy)
    return ok("state", f"the history of the pairs is stored in {folder}")


def _is_full(folder: Path) -> str:
    """Return why the disk has no space for small files, for users other than root; "" if it has."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < _STATE_BYTES:
        return f"{free / 2**20:.1f} MiB are free"
    # File systems without inode counts (btrfs) report 0 for both.
    return "no file can be added" if disk.f_files and not disk.f_favail else ""


def secrets(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for a file with keys that every user can read."""
    path = settings.env_file
    try:
        if path is None or not path.stat().st_mode & 0o004:
            return
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    if any(line.lstrip().startswith("SPECD_API_KEYS=") for line in lines):
        words = f"{path} contains keys, and every user of this machine can read it"
        yield warning("keys", words, f"chmod o-r {path}")


def _user() -> str:
    import pwd  # noqa: PLC0415 - POSIX alone has it

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"
