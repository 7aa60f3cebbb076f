"""Build the service's environment in another folder, check it, and rename it into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Final

from specd.errors import InstallError
from specd.install.files import delete_tree
from specd.install.host_system import CommandFailed, HostSystem
from specd.install.interpreter import Interpreter
from specd.install.layout import ENVIRONMENT, FORMER, HIDDEN, STAGED, is_below
from specd.install.steps import Step, Undo, rename
from specd.install.venv_sources import Sources

#: From linux/fs.h: share a file's blocks until one of the two is written to.
_FICLONE: Final = 0x40049409
#: Parts of the standard library that the service does not need.
_EXCLUDED: Final = (
    "site-packages", "dist-packages", "test", "tests", "lib2to3", "idlelib", "tkinter",
    "turtledemo", "ensurepip", "config-*",
)  # fmt: skip
#: Imports all that the daemon and its engines load, and prints the loaded files.
_CHECK_SCRIPT: Final = """
import json, sys
import specd.daemon, specd.cli, llama_cpp, llguidance
with open("/proc/self/maps") as maps:
    loaded = {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
loaded |= {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
print(json.dumps(sorted(loaded | set(filter(None, sys.path)))))
"""


def build_venv(interpreter: Interpreter, sources: Sources) -> Step:
    """Return a step that builds the environment, owned by root and readable by all.

    It is compiled here, because the service cannot write to it.
    """

    def do(machine: HostSystem, undo: Undo) -> None:
        staged = machine.at(STAGED)
        undo.add(partial(delete_tree, staged))
        delete_tree(staged)
        staged.parent.mkdir(parents=True, exist_ok=True)
        if interpreter.is_copied:
            _copy_interpreter(interpreter, staged)
        else:
            _make_venv(interpreter, staged, machine)
        packages = staged / "lib" / f"python{interpreter.version}" / "site-packages"
        for target, path in sources.files.items():
            copy_file(path, packages / target)
        for page in sources.docs:
            copy_file(page, staged / "docs" / page.name)
        _write_command(staged)
        python = str(staged / "bin" / "python3")
        with contextlib.suppress(CommandFailed):  # some packages contain files that are not Python
            machine.run(python, "-I", "-m", "compileall", "-qq", "-j", "0", str(packages))
        _make_readable(staged)
        _check_venv(python, machine)

    needed = f"specd and the {len(sources.names) - 1} packages it needs"
    size = f"{sources.n_bytes / 1e6:.0f} MB"
    return Step(f"make {STAGED} with {interpreter.words}: {needed}, {size}", do)


def swap_venv() -> Step:
    """Return a step that swaps environments by two renames, and deletes the former one at last."""

    def do(machine: HostSystem, undo: Undo) -> None:
        place, former = machine.at(ENVIRONMENT), machine.at(FORMER)
        if place.exists():
            delete_tree(former)
            rename(place, former, undo)
        rename(machine.at(STAGED), place, undo)
        undo.add_cleanup(partial(delete_tree, former))

    return Step(f"rename {STAGED} to {ENVIRONMENT}", do)


def restore_former_venv() -> Step:
    """Return a step that repairs an installation that was killed between the two renames.

    It has no undo: without an environment the service cannot start.
    """
    return Step(
        f"rename {FORMER} to {ENVIRONMENT}: an earlier installation was cut short",
        lambda machine, _: machine.at(FORMER).rename(machine.at(ENVIRONMENT)),
    )


def _make_venv(interpreter: Interpreter, staged: Path, machine: HostSystem) -> None:
    python = interpreter.executable
    machine.run(python, "-I", "-m", "venv", "--without-pip", "--symlinks", str(staged))
    for script in staged.joinpath("bin").glob("[Aa]ctivate*"):
        script.unlink()  # they contain the folder's earlier name


def _copy_interpreter(python: Interpreter, staged: Path) -> None:
    """Copy the interpreter; Python finds its library next to itself."""
    prefix, name = Path(python.prefix), f"python{python.version}"
    copy_file(Path(python.executable).resolve(), staged / "bin" / name)
    _patch_library_path(staged / "bin" / name, prefix / "lib")
    for link in ("python3", "python"):
        (staged / "bin" / link).symlink_to(name)
    for library in prefix.glob("lib/libpython3*.so*"):
        copy_file(library, staged / "lib" / library.name)
    shutil.copytree(
        prefix / "lib" / name,
        staged / "lib" / name,
        ignore=shutil.ignore_patterns(*_EXCLUDED),
        copy_function=lambda source, target: copy_file(Path(source), Path(target)),
    )


def _patch_library_path(program: Path, folder: Path) -> None:
    """Overwrite the full path of libpython in the program, if it was linked so.

    The dynamic string table ends it with a NUL, so a shorter path fits.
    """
    former, wanted = os.fsencode(folder), b"$ORIGIN/../lib"
    if len(former) >= len(wanted):
        code = program.read_bytes()
        padded = b"\0" + wanted.ljust(len(former) + 1, b"\0")
        program.write_bytes(code.replace(b"\0" + former + b"\0", padded))


def copy_file(source: Path, target: Path) -> None:
    """Copy content, executable bit and time of change, which validates compiled code.

    The blocks are shared if the file system supports it.  A hard link would let the owner of the
    source write to the copy.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as write:
        try:
            fcntl.ioctl(write, _FICLONE, read.fileno())
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
                raise
            shutil.copyfileobj(read, write, 1 << 20)
        seen = os.fstat(read.fileno())
        os.fchmod(write.fileno(), 0o755 if seen.st_mode & 0o100 else 0o644)
    os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _write_command(staged: Path) -> None:
    path = staged / "bin" / "specd"
    path.write_text(
        f"#!{ENVIRONMENT}/bin/python3 -I\n"
        "import sys\n\nfrom specd.cli import main\n\n"
        'if __name__ == "__main__":\n    sys.exit(main())\n'
    )
    path.chmod(0o755)


def _make_readable(folder: Path) -> None:
    """Make the files readable for the service's user, whatever root's umask is."""
    for path, _, files in os.walk(folder):
        Path(path).chmod(0o755)
        for name in files:
            file = Path(path, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _check_venv(python: str, machine: HostSystem) -> None:
    """Run the environment once.

    Raises InstallError if something is missing, or if it loads files that the unit hides.
    """
    try:
        loaded = json.loads(machine.run(python, "-I", "-c", _CHECK_SCRIPT))
    except CommandFailed as error:
        raise InstallError(f"the new environment does not work: {error}") from error
    staged = str(machine.at(STAGED))
    hidden = [p for p in loaded if is_below(p, HIDDEN) and not is_below(p, (staged,))]
    if hidden:
        raise InstallError(
            f"the new environment needs {hidden[0]}, which the service cannot see; name a Python"
            " that is the system's own: specd install --python /usr/bin/python3"
        )
