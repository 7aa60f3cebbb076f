"""Disks that are full, cannot be written or go away, under a running daemon."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.fake_registry import digest_of

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer.  lines: the decoded lines of its body."""

    status: int
    lines: tuple[Any, ...]

    @property
    def error(self) -> str:
        """Return the error in Ollama's form: the whole body, or the last line of a stream."""
        errors = [line["error"] for line in self.lines if "error" in line]
        assert len(errors) == 1, self
        assert self.status >= 400 or "error" in self.lines[-1], self
        return str(errors[0])

    @property
    def done(self) -> bool:
        stream = self.status == 200 and self.lines
        return self.lines[-1] == {"status": "success"} if stream else self.status in {200, 201}


def answer(status: int, text: str) -> Answer:
    return Answer(status, tuple(json.loads(line) for line in text.splitlines()))


@dataclass(frozen=True, slots=True)
class Served:
    """A daemon over the models "m" and "other", which say the prompt's own words."""

    daemon: Daemon
    store: OllamaStore
    folder: Path

    async def ask(self, method: str, path: str, **body: Any) -> Answer:
        async with self.daemon.http.request(method, path, json=body) as response:
            return answer(response.status, await response.text())

    async def post(self, path: str, **body: Any) -> Answer:
        return await self.ask("POST", path, **body)

    async def upload(self, data: bytes) -> Answer:
        path = f"/api/blobs/{digest_of(data)}"
        async with self.daemon.http.post(path, data=io.BytesIO(data)) as response:
            return answer(response.status, await response.text())

    async def names(self) -> list[str]:
        async with self.daemon.http.get("/api/tags") as response:
            assert response.status == 200
            return sorted(model["name"] for model in (await response.json())["models"])

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def left_over(self) -> list[str]:
        """Return partial blobs and unexpected files in the store's folder."""
        blobs = (path.name for path in (self.store.root / "blobs").iterdir())
        strange = [path.name for path in self.store.root.iterdir()]
        return sorted(
            [name for name in blobs if "partial" in name]
            + [name for name in strange if name not in {"blobs", "manifests", ".filler"}]
        )

    async def is_well(self, *models: str) -> None:
        """Assert that each model answers, no store file is open, and no error is logged."""
        for model in models or ("m", "other"):
            said = await self.daemon.answer("still here", model=model)
            assert [line.get("response") for line in said] == ["still ", "here ", ""], said
        log = self.log()
        assert "Traceback" not in log, log
        assert "internal error" not in log, log
        files = [file.path for file in psutil.Process(self.daemon.process.pid).open_files()]
        assert [path for path in files if path.startswith(str(self.store.root))] == []


def add_models(store: OllamaStore, folder: Path) -> None:
    for seed, name in enumerate(("m", "other")):
        weights = write_llama(folder / f"{name}.gguf", chat_template=None, seed=seed)
        store.add(name, weights=weights)


@contextlib.asynccontextmanager
async def served(
    folder: Path, *, engine: tuple[str, ...] = FAKE_ENGINE, **variables: str
) -> AsyncIterator[Served]:
    """Yield a daemon over folder/models; add the two models there if it is writable.

    The daemon's user has no key and no files but those in the folder.
    """
    store = OllamaStore(folder / "models")
    if not store.manifest_path("m").exists():
        add_models(store, folder)
    own = {"HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "config")}
    with (folder / "log").open("ab") as log:
        async with running(folder, engine=engine, log=log.fileno(), **(own | variables)) as daemon:
            yield Served(daemon, store, folder)


@contextlib.contextmanager
def small_files(daemon: Daemon, n_bytes: int) -> Iterator[None]:
    """Limit the size of the daemon's files: like a full disk, but without root."""
    pid = daemon.process.pid
    _, most = before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (n_bytes, most))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def mounted(where: Path, *what: str) -> Iterator[None]:
    """Run `mount WHAT... WHERE`; skip the test if mounting is not possible."""
    where.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("only root mounts disks")
    done = subprocess.run(["mount", *what, str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        unmount(where)


def unmount(where: Path) -> None:
    """Unmount lazily: files that are open there stay usable."""
    subprocess.run(["umount", "--lazy", str(where)], capture_output=True, check=False)


@contextlib.contextmanager
def small_disk(where: Path, n_bytes: int) -> Iterator[Path]:
    with mounted(where, "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs"):
        yield where


@contextlib.contextmanager
def read_only(where: Path) -> Iterator[None]:
    """Mount the folder over itself, read-only."""
    with mounted(where, "--bind", "-o", "ro", str(where)):
        yield


@contextlib.contextmanager
def filled(disk: Path, *, free: int = 0) -> Iterator[None]:
    """Fill the disk, so that only `free` bytes remain."""
    filler = disk / ".filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(64 * 1024)):
            pass
    os.truncate(filler, max(filler.stat().st_size - free, 0))
    try:
        yield
    finally:
        filler.unlink()
