"""Start a real OCI registry, Debian's `docker-registry`, as a process on a free port.

An installed one is used.  Otherwise the package is downloaded and unpacked into the user's cache,
without root.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

PACKAGE: Final = "docker-registry"
_CONFIG = """\
version: 0.1
log: {{level: info, formatter: text}}
storage: {{filesystem: {{rootdirectory: "{folder}/blobs"}}}}
http: {{addr: "127.0.0.1:0"}}
"""
_READY = re.compile(r"listening on (127\.0\.0\.1:\d+)")


class NoRegistry(Exception):
    """The registry's program is not available; the text says why."""


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """Run the registry over plain HTTP; yield its `host:port`.  Raises NoRegistry."""
    program, config = await asyncio.to_thread(_prepare, folder)
    process = await asyncio.create_subprocess_exec(
        program,
        "serve",
        str(config),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    reading: asyncio.Task[None] | None = None
    try:
        address = await _address(process.stderr)
        reading = asyncio.create_task(_drain(process.stderr))
        yield address
    finally:
        process.kill()
        await process.wait()
        if reading is not None:
            await reading


def _prepare(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(folder=folder))
    return _binary(), config


async def _address(log: asyncio.StreamReader) -> str:
    lines: list[str] = []
    async for line in log:
        lines.append(line.decode())
        if found := _READY.search(lines[-1]):
            return found[1]
    raise AssertionError(f"the registry ended before it listened: {''.join(lines)}")


async def _drain(log: asyncio.StreamReader) -> None:
    async for _ in log:
        pass


def _binary() -> Path:
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
