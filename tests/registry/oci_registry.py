"""The real OCI registry as a process, on a port of its own choosing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from scripts import oci_registry

_CONFIG = """\
version: 0.1
log: {{level: info, formatter: text}}
storage: {{filesystem: {{rootdirectory: "{folder}/blobs"}}}}
http: {{addr: "127.0.0.1:0"}}
"""
_READY = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """Its `host:port`, over plain HTTP.  Raises NoRegistry where the program cannot be had."""
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
    return oci_registry.binary(), config


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
