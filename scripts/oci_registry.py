"""Provide the OCI registry for tests of push and pull: Debian's `docker-registry`.

An installed one is used.  Otherwise the package is downloaded and unpacked into the user's cache,
without root.  `python -m scripts.oci_registry` prints its path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "docker-registry"


class NoRegistry(Exception):
    """There is no registry; the text says why."""


def binary() -> Path:
    """Return the path of the registry's program.  Raises NoRegistry."""
    if installed := shutil.which(PACKAGE):
        return Path(installed)
    cached = _cache() / PACKAGE
    if not cached.is_file():
        _fetch(cached)
    return cached


def _cache() -> Path:
    of_user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (of_user if of_user.is_absolute() else Path.home() / ".cache") / "specd"


def _fetch(target: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NoRegistry(f"{PACKAGE} is not installed, and this is not a Debian system")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        try:
            _run(["apt-get", "download", PACKAGE], scratch)
        except (
            NoRegistry
        ):  # the system has no package lists, and this script must not download them
            Path(scratch, "lists", "partial").mkdir(parents=True)
            own = [
                "apt-get",
                "-o",
                f"Dir::State::lists={scratch}/lists",
                "-o",
                f"Dir::Cache={scratch}",
            ]
            _run([*own, "update"], scratch)
            _run([*own, "download", PACKAGE], scratch)
        package = next(Path(scratch).glob("*.deb"), None)
        if package is None:
            raise NoRegistry(f"apt-get gave no package {PACKAGE}")
        _run(["dpkg-deb", "--extract", str(package), "unpacked"], scratch)
        # Renamed at the end, so that parallel downloads never leave a partial program.
        (Path(scratch) / "unpacked" / "usr" / "bin" / PACKAGE).replace(target)


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NoRegistry(f"{' '.join(command)}: {said[-1] if said else done.returncode}")


def main() -> int:
    try:
        print(binary())
    except NoRegistry as error:
        print(f"no OCI registry for the tests: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
