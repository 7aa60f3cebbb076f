"""One conversion: strangers' files, in a private folder, through a process that is bounded."""

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
#: Data and no code: neither Python nor pickles (.bin, .pt, .pth).
_NAME: Final = re.compile(r"[\w. -]+\.(safetensors|json|model|txt|jinja|tiktoken)", re.ASCII)
_CONFIG: Final = "config.json"
_ADAPTER: Final = ("adapter_config.json", "adapter_model.safetensors")
#: Of the memory that is free when it begins; the files' own pages come on top, and can be dropped.
_MEMORY_SHARE: Final = 0.75
_CPU_S: Final = 600
_CPU_S_PER_MIB: Final = 0.5
#: Weights of 8 bits become 32 at most; the vocabulary and the header come on top.
_GROWTH: Final = 4
_HEADER_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSource:
    """files: paths by the names that the converter looks for.

    base: of an adapter, the config.json of the model that it is made for; None is a model.
    """

    files: Mapping[str, Path]
    base: Path | None = None
    is_adapter: bool = field(default=False)

    def check(self) -> None:
        """Raise InvalidRequest for names that are no plain files of data, and for missing ones."""
        for name in self.files:
            if not is_convertible_file(name):
                raise InvalidRequest(
                    f"a model of safetensors cannot have the file {json.dumps(name[:80])}: only"
                    " .safetensors, .json, .model, .txt, .jinja and .tiktoken without folders"
                )
        for name in _ADAPTER if self.is_adapter else (_CONFIG,):
            if name not in self.files:
                raise InvalidRequest(f"the safetensors come without {name}")
        if self.is_adapter and self.base is None:
            raise InvalidRequest(
                "an adapter of safetensors needs the config.json of its base model beside it"
            )

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def out_type(file_type: str) -> str:
    """Return what the converter is told for a type of a GGUF; the others are quantized later."""
    return {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(file_type.upper(), "auto")


def is_convertible_file(name: str) -> bool:
    """Return whether a file of that name may go with safetensors."""
    return _NAME.fullmatch(name) is not None


async def convert(
    source: ConversionSource,
    target: Path,
    *,
    environment: Environment,
    file_type: str = "auto",
    stall_s: float = math.inf,
) -> AsyncGenerator[tuple[int, int], None]:
    """Write a GGUF of the source to `target`; yields (bytes written, all bytes).

    file_type: f32, f16, bf16; auto is the largest of 16 bits that holds the weights.
    stall_s: how long the converter may say nothing.  Closing it early ends the process.
    Raises InvalidRequest where the converter cannot make one of it, EngineError where it dies.
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
            said = _parse_line(line)
            if "error" in said:
                why = str(said["error"])
            elif "done" in said:
                yield int(said["done"]), int(said["total"])
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
    """What program.py says; the converter's own lines are no JSON."""
    if not line.startswith(b"{"):
        return {}
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _link_files(source: ConversionSource, folder: Path) -> list[str]:
    """Link the files into the folder under their names; the converter's arguments for them."""
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
    """Memory in bytes, time of a processor in seconds, and bytes of the largest file."""
    free = psutil.virtual_memory().available
    return (
        int(free * _MEMORY_SHARE) + n_bytes,
        _CPU_S + int(n_bytes / 2**20 * _CPU_S_PER_MIB),
        n_bytes * _GROWTH + _HEADER_BYTES,
    )


def _variables(folder: Path) -> dict[str, str]:
    """None of specd's own: keys and settings are not for strangers' files."""
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
