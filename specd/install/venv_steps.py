"""Build the service's environment in another folder, check it, and rename it into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specd.errors import InstallError
from specd.install.host_system import CommandFailed, HostSystem
from specd.install.interpreter import PythonChoice
from specd.install.layout import ENVIRONMENT, FORMER, HIDDEN, STAGED, is_below
from specd.install.steps import Step, delete_tree
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


@dataclass
class BuildVenv(Step):
    """A step that builds the environment, owned by root and readable by all.

    It is compiled here, because the service cannot write to it.
    """

    choice: PythonChoice
    sources: Sources
    _was_reached: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        size = f"{self.sources.n_bytes / 1e6:.0f} MB"
        n = len(self.sources.names)
        packages = f"specd and the {n - 1} packages it needs, {size}"
        return f"make {STAGED} with {self.choice.words}: {packages}"

    def do(self, machine: HostSystem) -> None:
        self._was_reached = True
        staged = machine.at(STAGED)
        delete_tree(staged)
        staged.parent.mkdir(parents=True, exist_ok=True)
        if self.choice.is_copied:
            _copy_interpreter(self.choice, staged)
        else:
            _make_venv(self.choice, staged, machine)
        packages = staged / "lib" / f"python{self.choice.interpreter.version}" / "site-packages"
        for source in self.sources.files:
            copy_file(source.path, packages / source.target)
        for page in self.sources.docs:
            copy_file(page, staged / "docs" / page.name)
        _write_command(staged)
        python = str(staged / "bin" / "python3")
        with contextlib.suppress(CommandFailed):  # some packages contain files that are not Python
            machine.run(python, "-I", "-m", "compileall", "-qq", "-j", "0", str(packages))
        _make_readable(staged)
        _check_venv(python, machine)

    def undo(self, machine: HostSystem) -> None:
        if self._was_reached:
            delete_tree(machine.at(STAGED))


@dataclass
class SwapVenv(Step):
    """A step that swaps environments by two renames; the former one is deleted at the end."""

    _was_reached: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def words(self) -> str:
        return f"rename {STAGED} to {ENVIRONMENT}"

    def do(self, machine: HostSystem) -> None:
        place, former = machine.at(ENVIRONMENT), machine.at(FORMER)
        self._was_reached = True
        if place.exists():
            delete_tree(former)
            place.rename(former)
        machine.at(STAGED).rename(place)

    def undo(self, machine: HostSystem) -> None:
        if not self._was_reached:
            return
        place, former, staged = machine.at(ENVIRONMENT), machine.at(FORMER), machine.at(STAGED)
        if place.exists() and not staged.exists():
            place.rename(staged)
        if former.exists():
            former.rename(place)

    def finish(self, machine: HostSystem) -> None:
        delete_tree(machine.at(FORMER))


@dataclass
class RestoreFormerVenv(Step):
    """A step that repairs an installation that was killed between the two renames."""

    @property
    def words(self) -> str:
        return f"rename {FORMER} to {ENVIRONMENT}: an earlier installation was cut short"

    def do(self, machine: HostSystem) -> None:
        machine.at(FORMER).rename(machine.at(ENVIRONMENT))


def _make_venv(choice: PythonChoice, staged: Path, machine: HostSystem) -> None:
    python = choice.interpreter.executable
    machine.run(python, "-I", "-m", "venv", "--without-pip", "--symlinks", str(staged))
    for script in staged.joinpath("bin").glob("[Aa]ctivate*"):
        script.unlink()  # they contain the folder's earlier name


def _copy_interpreter(choice: PythonChoice, staged: Path) -> None:
    """Copy the interpreter; Python finds its library next to itself."""
    python = choice.interpreter
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
        copy_function=_copy_for_tree,
    )


def _patch_library_path(program: Path, folder: Path) -> None:
    """Overwrite the full path of libpython in the program, if it was linked so.

    The dynamic string table ends it with a NUL, so a shorter path fits.
    """
    said, wanted = os.fsencode(folder), b"$ORIGIN/../lib"
    if len(said) >= len(wanted):
        code = program.read_bytes()
        padded = b"\0" + wanted.ljust(len(said) + 1, b"\0")
        program.write_bytes(code.replace(b"\0" + said + b"\0", padded))


def _copy_for_tree(source: str, target: str) -> str:
    copy_file(Path(source), Path(target))
    return target


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
