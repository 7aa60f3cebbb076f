"""Environments of third-party clients, made once and kept in the user's cache."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
#: What the `openai` package of package.json runs on.
OPENAI_NODE_VERSION = 20


def python_environment() -> Path:
    """Return the Python interpreter of an environment with requirements.txt."""
    requirements = PROGRAMS / "requirements.txt"

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", folder)
        pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", "--no-deps", "-r", requirements)

    return _cached_folder(requirements, make) / "bin" / "python"


def node_environment(least_version: int = 0) -> Path | None:
    """Return the folder with the clients of package.json; None without npm.

    least_version: return None also if Node.js is older than this major version.
    """
    if shutil.which("npm") is None or node_version() < least_version:
        return None
    package = PROGRAMS / "package.json"

    def make(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(package, folder)
        _run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", cwd=folder)

    return _cached_folder(package, make)


def node_version() -> int:
    """Return the major version of `node`; 0 if it is not installed."""
    if shutil.which("node") is None:
        return 0
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return int(done.stdout.removeprefix("v").partition(".")[0])


async def run_program(*command: str, home: Path, given: bytes = b"") -> dict[str, Any]:
    """Run a client's program and return the JSON object of its last line of output.

    home: the program's home folder, so that it does not read the settings of the tests' user.
    given: bytes for its standard input.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LLM_USER_PATH": str(home / "llm"),
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, complaints = await process.communicate(given)
    assert process.returncode == 0, complaints.decode()[-4000:]
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def _cached_folder(recipe: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder made from this recipe; wait if another process is making it."""
    key = recipe.read_bytes() + sys.version.encode()
    name = f"{recipe.stem}-{hashlib.sha256(key).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specd" / "clients"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "complete").touch()
    return folder


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
