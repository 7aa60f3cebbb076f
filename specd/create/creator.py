"""Creation of a model: collect its parts, quantize them, add the text layers, write the manifest.

Invalid requests fail before the first progress line, so that they get their own HTTP status.  The
model is visible only once its manifest is written; a failed create removes the blobs it wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from specd.core import Progress
from specd.create.model_parts import (
    Base,
    ModelPart,
    NewBlobs,
    collect_parts,
    from_model,
    is_base_stored,
    sources_version,
    type_of,
)
from specd.create.request import CheckTemplate, CreateRequest, ValidatedRequest, check
from specd.create.safetensors import NO_DIGEST, SafetensorsImporter
from specd.create.text_layers import config_text, text_layers, with_part
from specd.errors import ModelNotFound, ShuttingDown, StoreError
from specd.runner import ENGINE
from specd.runner.quantize import quantize
from specd.store import Name, StoreWriter
from specd.store.manifest import manifest_text

Pull = Callable[[str], AsyncGenerator[Progress, None]]
ReportProgress = Callable[[Progress], None]
#: The base, all parts with weights, and those of them that are imported.
_Collected = tuple[Base, list[ModelPart], list[ModelPart]]

#: How often reading the sources starts again because they changed; the last error is raised.
_MAX_CHANGES: Final = 8


@dataclass(frozen=True, slots=True)
class _Creation:
    """One running create."""

    request: CreateRequest
    validated: ValidatedRequest
    new: NewBlobs
    report: ReportProgress


class Creator:
    """Creator of models in one store.

    check_template: raises InvalidRequest for a Go template that does not parse.
    pull: downloads the model in `from` if the store lacks it; None to never download.
    command: command that starts an engine process.
    stall_s: how long a quantization or conversion may show no progress.
    converter_dir: folder with the environment of the safetensors converter.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        check_template: CheckTemplate,
        pull: Pull | None = None,
        command: Sequence[str] = ENGINE,
        stall_s: float = math.inf,
        converter_dir: Path | None = None,
    ) -> None:
        self._writer = writer
        self._do = writer.threads.do
        self._check_template = check_template
        self._pull = pull
        self._command = command
        self._stall_s = stall_s
        self._safetensors = SafetensorsImporter(writer, folder=converter_dir, stall_s=stall_s)
        self._works: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        """Cancel all running creates; their callers get ShuttingDown."""
        self._closed = True
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    async def create(self, request: CreateRequest) -> AsyncGenerator[Progress, None]:
        """Create a model; yield progress lines in Ollama's order, the last one `success`.

        Closing the generator cancels the work.  Raises InvalidRequest, ModelNotFound, StoreError,
        EngineError if quantizing fails, and ShuttingDown.
        """
        if self._closed:
            raise ShuttingDown("the server is shutting down")
        lines: asyncio.Queue[Progress | None] = asyncio.Queue()
        work = asyncio.create_task(self._create(request, lines.put_nowait))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        work.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (line := await lines.get()) is not None:
                yield line
            if work.cancelled():
                raise ShuttingDown("the server is shutting down")
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _create(self, request: CreateRequest, report: ReportProgress) -> None:
        new = NewBlobs(self._writer)
        try:
            validated = await self._do(partial(check, request, self._check_template))
            await self._do(partial(self._writer.check_name, validated.name))
            request = await self._safetensors.convert_uploads(request, validated, new, report)
            creation = _Creation(request, validated, new, report)
            base, found, imported = await self._collect_parts(creation)
            for _ in imported:
                report(Progress(status="parsing GGUF"))
            parts = [await self._quantize(creation, part, part in imported) for part in found]
            if imported or parts != found:
                report(Progress(status="verifying conversion"))
            for kind, data in await self._do(partial(text_layers, self._writer, request, parts)):
                parts = with_part(parts, await self._do(partial(new.put, kind, data)))
            for part in parts:
                report(Progress(status=part.status))
            report(Progress(status="writing manifest"))
            config = await self._do(partial(new.put, "config", config_text(request, base, parts)))
            text = manifest_text(config.layer, [part.layer for part in parts])
            await self._writer.run_exclusive(
                partial(self._writer.publish, validated.name, text, blob_lock=new.blob_lock)
            )
            new.keep([config, *parts])
            report(Progress(status="success"))
        finally:
            await new.discard()

    # ------------------------------------------------------------------ steps

    async def _collect_parts(self, creation: _Creation) -> _Collected:
        """Return the base, all parts with weights (their blobs locked), and the imported ones.

        Starts again if a source is deleted or replaced meanwhile.
        """
        base = creation.validated.base
        read_version = partial(sources_version, self._writer, creation.request, base)
        for _ in range(_MAX_CHANGES):
            version = await self._do(read_version)
            try:
                return await self._collect_parts_once(creation)
            except (StoreError, ModelNotFound):
                if await self._do(read_version) == version:
                    raise
        return await self._collect_parts_once(creation)

    async def _collect_parts_once(self, creation: _Creation) -> _Collected:
        base = await self._base(creation)
        found, imported = await self._do(
            partial(collect_parts, self._writer, creation.request, creation.validated, base)
        )
        await self._do(partial(creation.new.add, found))
        return base, found, imported

    async def _base(self, creation: _Creation) -> Base:
        """Return the model in `from`, pulled if it is missing; empty for a remote model."""
        name = creation.validated.base
        if name is None or creation.request.remote_host:
            return Base()
        is_stored = await self._do(partial(is_base_stored, self._writer, name))
        if self._pull is not None and not is_stored:
            async with contextlib.aclosing(self._pull(name.full)) as lines:
                async for line in lines:
                    if line.status != "success":
                        creation.report(line)
        return await self._do(partial(self._load_base, name, creation.new))

    def _load_base(self, name: Name, new: NewBlobs) -> Base:
        base = from_model(self._writer, name)
        new.add(base.parts)
        return base

    async def _quantize(self, creation: _Creation, part: ModelPart, is_imported: bool) -> ModelPart:
        """Return the part in the requested type, quantized if it has another one."""
        report = creation.report
        file_type = creation.validated.type_of(part.kind)
        if part.header is None or not file_type or type_of(part.header) == file_type:
            if is_imported and part.kind in {"model", "draft"}:
                report(Progress(status="validating GGUF model", digest=NO_DIGEST))
            return part
        with contextlib.ExitStack() as stack:
            path = await self._do(partial(stack.enter_context, self._writer.staged()))
            status = f"quantizing {type_of(part.header)} model to {file_type}"
            line = Progress(status=status, digest=NO_DIGEST, total=part.layer.size)
            report(line)
            steps = quantize(
                part.header.path, path, file_type, command=self._command, stall_s=self._stall_s
            )
            async with contextlib.aclosing(steps):
                async for done, n in steps:
                    report(replace(line, completed=part.layer.size * done // max(n, 1)))
            return await self._do(partial(creation.new.put_file, part.kind, path))
