"""Conversion of uploaded safetensors to GGUF, the first step of a create."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from specd.converter import ConversionSource, convert, find_environment, out_type
from specd.core import Progress
from specd.create.model_parts import NewBlobs, uploaded_blob
from specd.create.request import CreateRequest, ValidatedRequest, has_safetensors
from specd.errors import InvalidRequest
from specd.store import StoreWriter

#: Placeholder digest in progress lines; Ollama's command expects a digest.
NO_DIGEST: Final = "0000000000000000000"
_KINDS: Final = {"files": "model", "adapters": "adapter", "draft_files": "draft"}
_NOT_PREPARED: Final = (
    "cannot convert safetensors: llama.cpp's converter and PyTorch are not installed; run"
    " `specd create --prepare-converter` on the server, as the user that the daemon runs as"
    " (docs/safetensors.md)"
)


class SafetensorsImporter:
    """Converter of uploaded safetensors, one at a time, as each may need most of the memory.

    folder: the converter's environment; None if it has no folder.
    stall_s: how long the converter may show no progress.
    """

    def __init__(
        self, writer: StoreWriter, *, folder: Path | None = None, stall_s: float = math.inf
    ) -> None:
        self._writer = writer
        self._do = writer.threads.do
        self._folder = folder
        self._stall_s = stall_s
        self._one = asyncio.Lock()

    async def convert_uploads(
        self,
        request: CreateRequest,
        validated: ValidatedRequest,
        new: NewBlobs,
        report: Callable[[Progress], None],
    ) -> CreateRequest:
        """Return the request with one GGUF in place of each set of safetensors.

        Raises InvalidRequest if the environment is missing or the files cannot be converted, and
        EngineError if the converter dies.
        """
        sources = await self._do(lambda: dict(_sources(self._writer, request)))
        if not sources:
            return request
        folder = self._folder
        environment = None if folder is None else await self._do(lambda: find_environment(folder))
        if environment is None:
            raise InvalidRequest(_NOT_PREPARED)
        converted: dict[str, Any] = {}
        for field, source in sources.items():
            kind = _KINDS[field]
            file_type = "f32" if source.is_adapter else out_type(validated.type_of(kind))
            line = Progress(status=f"converting {kind}", digest=NO_DIGEST)
            async with self._one:
                with contextlib.ExitStack() as stack:
                    path = await self._do(partial(stack.enter_context, self._writer.staged()))
                    steps = convert(
                        source,
                        path,
                        environment=environment,
                        file_type=file_type,
                        stall_s=self._stall_s,
                    )
                    report(replace(line, total=source.n_bytes))
                    async with contextlib.aclosing(steps):
                        async for done, total in steps:
                            report(replace(line, completed=done, total=total))
                    part = await self._do(partial(new.put_file, kind, path))
            converted[field] = {f"{kind}.gguf": part.layer.digest}
        return replace(request, **converted)


def _sources(writer: StoreWriter, request: CreateRequest) -> Iterator[tuple[str, ConversionSource]]:
    """Yield each field of the request that has safetensors, and what to convert.

    Raises InvalidRequest for files that cannot be converted.
    """
    config = (request.files or {}).get("config.json") or request.adapters.get("config.json")
    base = uploaded_blob(writer, config) if config else None
    for field in _KINDS:
        files = getattr(request, field) or {}
        if not has_safetensors(files):
            continue
        paths = {name: uploaded_blob(writer, digest) for name, digest in files.items()}
        is_adapter = field == "adapters"
        source = ConversionSource(
            files=paths, base=base if is_adapter else None, is_adapter=is_adapter
        )
        source.check()
        yield field, source
