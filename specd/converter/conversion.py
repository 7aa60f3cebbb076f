"""One conversion: untrusted files, in a private folder, by a process with limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import signal
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from specd.converter.environment import Environment
from specd.errors import EngineError, InvalidRequest
from specd.runner.output import ended, iter_lines

log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("program.py")
#: Data files only: neither Python nor pickles (.bin, .pt, .pth).
_NAME: Final = re.compile(r"[\w. -]+\.(safetensors|json|model|txt|jinja|tiktoken)", re.ASCII)
_CONFIG: Final = "config.json"
_ADAPTER: Final = ("adapter_config.json", "adapter_model.safetensors")
#: Share of the free memory, in addition to the files' pages, which the kernel can drop.
_MEMORY_SHARE: Final = 0.75
_CPU_S: Final = 600
_CPU_S_PER_MIB: Final = 0.5
#: 8-bit weights become 32-bit at most; the vocabulary and the header are added.
_GROWTH: Final = 4
_HEADER_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSource:
    """The files of a model or an adapter.

    files: paths by the names that the converter expects.
    base: for an adapter, the config.json of its base model; None for a model.
    """

    files: Mapping[str, Path]
    base: Path | None = None
    is_adapter: bool = field(default=False)

    def check(self) -> None:
        """Raise InvalidRequest for file names that are not allowed, and for missing files."""
        for name in self.files:
            if not is_convertible_file(name):
                raise InvalidRequest(
                    f"a model of safetensors cannot have the file {json.dumps(name[:80])}: only"
                    " .safetensors, .json, .model, .txt, .jinja and .tiktoken without folders"
                    " are allowed"
                )
        for name in _ADAPTER if self.is_adapter else (_CONFIG,):
            if name not in self.files:
                raise InvalidRequest(f"the safetensors come without {name}")
        if self.is_adapter and self.base is None:
            raise InvalidRequest(
                "an adapter of safetensors needs the config.json of its base model"
            )

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def out_type(file_type: str) -> str:
    """Return the converter's name of a GGUF type; "auto" for types that are quantized later."""
    return {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(file_type.upper(), "auto")


def is_convertible_file(name: str) -> bool:
    """Return whether a file of that name may be part of a safetensors model."""
    return _NAME.fullmatch(name) is not None


async def convert(
    source: ConversionSource,
    target: Path,
    *,
    environment: Environment,
    file_type: str = "auto",
    stall_s: float = math.inf,
) -> AsyncGenerator[tuple[int, int], None]:
    """Write the source as a GGUF to `target`; yield (bytes written, all bytes).

    file_type: f32, f16, bf16, or auto for the 16-bit type that fits the weights.
    stall_s: how long the converter may print nothing.  Closing the generator ends the process.
    Raises InvalidRequest if the converter cannot convert the files, EngineError if it dies.
    """
    source.check()
    n_bytes = await asyncio.to_thread(lambda: source.n_bytes)
    with tempfile.TemporaryDirectory(prefix="specd-convert-") as scratch:
        folder = Path(scratch)
        arguments = await asyncio.to_thread(_link_files, source, folder)
        script = environment.adapter_script if source.is_adapter else environment.model_script
        process = await asyncio.create_subprocess_exec(
            *(str(environment.python), "-I", str(_PROGRAM), str(script)),
            *map(str, _limits(n_bytes)),
            *("--", *arguments, "--outfile", str(target), "--outtype", file_type),
            stdin=PIPE,  # its end tells the converter that specd is gone
            stdout=PIPE,
            stderr=STDOUT,
            cwd=folder,
            env=_variables(folder),
            process_group=0,
        )
        try:
            async for done, total in _follow_progress(process, stall_s):
                yield done, total
        finally:
            await _end(process)


async def _follow_progress(
    process: Process, stall_s: float
) -> AsyncGenerator[tuple[int, int], None]:
    why, last = "", b""
    try:
        async for line in iter_lines(process, stall_s):
            message = _parse_line(line)
            if "error" in message:
                why = str(message["error"])
            elif "done" in message:
                yield int(message["done"]), int(message["total"])
            else:
                last = line
    except TimeoutError as error:
        raise EngineError(f"converting failed: no progress for {stall_s:.0f} s") from error
    code = await process.wait()
    if why:
        raise InvalidRequest(f"llama.cpp cannot convert these safetensors: {why}")
    if code:
        how = f"exit status {code}" if code > 0 else f"signal: {signal.Signals(-code).name}"
        log.warning("the converter ended with %s: %s", how, last.decode(errors="replace"))
        raise EngineError(f"converting failed: the converter ended with {how}")


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return a message of program.py; {} for the converter's own lines, which are not JSON."""
    if not line.startswith(b"{"):
        return {}
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _link_files(source: ConversionSource, folder: Path) -> list[str]:
    """Link the files into the folder under their names; return the converter's arguments."""
    inputs = folder / "model"
    inputs.mkdir()
    for name, path in source.files.items():
        (inputs / name).symlink_to(path.resolve())
    if source.base is None or not source.is_adapter:
        return [str(inputs)]
    base = folder / "base"
    base.mkdir()
    (base / _CONFIG).symlink_to(source.base.resolve())
    return [str(inputs), "--base", str(base)]


def _limits(n_bytes: int) -> tuple[int, int, int]:
    """Return the limits: memory in bytes, CPU time in seconds, file size in bytes."""
    free = psutil.virtual_memory().available
    return (
        int(free * _MEMORY_SHARE) + n_bytes,
        _CPU_S + int(n_bytes / 2**20 * _CPU_S_PER_MIB),
        n_bytes * _GROWTH + _HEADER_BYTES,
    )


def _variables(folder: Path) -> dict[str, str]:
    """Return the environment variables of the process, without specd's keys and settings."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended(process)
