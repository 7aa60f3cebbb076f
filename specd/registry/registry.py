"""Pull and push of a model, as a stream of progress lines.

The manifest is written last, so an incomplete model is never visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from aiohttp import hdrs

from specd import core
from specd.errors import RegistryError, StoreError
from specd.registry import sessions
from specd.registry.downloads import PROGRESS_INTERVAL_S, Downloads, pull_progress
from specd.registry.manifests import fetch_manifest, layers_of, put_manifest
from specd.registry.partial import bytes_on_disk
from specd.registry.remote import USER_AGENT, Remote
from specd.registry.signing_key import SigningKey, load_signing_key
from specd.registry.transfer_context import Sizes, Traffic, TransferContext, TransferTimers
from specd.registry.upload import Upload
from specd.store import BlobLock, Name, StoreWriter, atomic_files, blobs, safe_open
from specd.store import name as names
from specd.store.file_threads import FileThreads
from specd.store.manifest import Layer, parse_manifest

log = logging.getLogger(__name__)


class Registry:
    """Client of model registries.  Use and close it within one event loop.

    `pull` and `push` raise InvalidName, RegistryError, StoreError and ShuttingDown.  A client
    cancels by closing the generator.

    keys: the folder of the user's signing key; None to send no signatures.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        keys: Path | None,
        timers: TransferTimers | None = None,
        sizes: Sizes | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._timers = timers or TransferTimers()
        self._disk = FileThreads("registry")
        self._context = TransferContext(
            writer=writer,
            disk=self._disk,
            timers=self._timers,
            sizes=sizes or Sizes(),
            traffic=traffic or Traffic(),
        )
        self._downloads = Downloads(self._context)
        self._sessions: sessions.Sessions | None = None
        self._known: SigningKey | None = None

    async def close(self) -> None:
        """Stop all transfers; downloads can be resumed later."""
        await self._downloads.close()
        if self._sessions is not None:
            await self._sessions.aclose()
        self._disk.close()

    # ------------------------------------------------------------------ pull

    async def pull(
        self, model: str, *, insecure: bool = False
    ) -> AsyncGenerator[core.Progress, None]:
        """Download the blobs of a model that are missing here, then write its manifest.

        insecure: use plain HTTP.
        """
        name = await self._resolve_name(model)
        await self._disk.do(partial(self._writer.check_name, name))
        remote = self._remote(name, insecure=insecure)
        yield core.Progress(status="pulling manifest")
        manifest, layers = await fetch_manifest(remote, name.tag)
        layers = tuple([await _fetch_size(remote, layer) for layer in layers])
        await self._disk.do(lambda: self._check_space(layers))
        blob_lock = BlobLock(self._writer)
        try:
            for layer in layers:
                async with aclosing(self._pull_layer(remote, layer)) as lines:
                    async for line in lines:
                        yield line
                await self._disk.do(partial(blob_lock.add, [layer.digest]))
            yield core.Progress(status="verifying sha256 digest")
            yield core.Progress(status="writing manifest")
            publish = partial(self._writer.publish, name, manifest, blob_lock=blob_lock)
            pruned = await self._writer.run_exclusive(publish)
        finally:
            blob_lock.close()
        if pruned:
            yield core.Progress(status="removing unused layers")
        log.info("pulled %s", name.short)
        yield core.Progress(status="success")

    async def _pull_layer(
        self, remote: Remote, layer: Layer
    ) -> AsyncGenerator[core.Progress, None]:
        if await self._disk.do(lambda: self._has(layer)):
            yield pull_progress(layer.digest, layer.size, layer.size)
            return
        async with aclosing(self._downloads.follow(remote, layer.digest, layer.size)) as lines:
            async for line in lines:
                yield line

    def _has(self, layer: Layer) -> bool:
        """Return whether the blob is here; one of another size is damaged and does not count."""
        path = self._writer.blob_path(layer.digest)
        return path.is_file() and path.stat().st_size == layer.size

    def _check_space(self, layers: Sequence[Layer]) -> None:
        """Raise StoreError now if the disk is too small for the missing blobs."""
        self._writer.prepare()
        with atomic_files.to_store_errors(f"write to {self._writer.root}"):
            missing = {layer.digest: layer.size for layer in layers if not self._has(layer)}
            needed = sum(
                size - bytes_on_disk(self._writer.partial_path(digest))
                for digest, size in missing.items()
            )
            free = shutil.disk_usage(self._writer.root / "blobs").free
        if needed > free:
            raise StoreError(
                f"no space left on device: the download needs {needed / 1e9:.1f} GB, and"
                f" {self._writer.root} has {free / 1e9:.1f} GB free"
            )

    # ------------------------------------------------------------------ push

    async def push(
        self, model: str, *, insecure: bool = False
    ) -> AsyncGenerator[core.Progress, None]:
        """Upload a model to the registry in its name.  insecure: use plain HTTP."""
        name = await self._resolve_name(model)
        await self._disk.do(partial(self._writer.check_name, name))
        remote = self._remote(name, insecure=insecure)
        yield core.Progress(status="retrieving manifest")
        try:
            manifest, layers = await self._disk.do(lambda: self._read_stored_manifest(name))
        except StoreError:
            yield core.Progress(status="couldn't retrieve manifest")
            raise
        for layer in layers:
            async with aclosing(self._push_layer(remote, layer)) as lines:
                async for line in lines:
                    yield line
        yield core.Progress(status="pushing manifest")
        await put_manifest(remote, name.tag, manifest)
        log.info("pushed %s", name.short)
        yield core.Progress(status="success")

    async def _push_layer(
        self, remote: Remote, layer: Layer
    ) -> AsyncGenerator[core.Progress, None]:
        upload = Upload(remote, layer, self._context)
        task = asyncio.create_task(upload.run(), name=f"upload {layer.digest}")
        reported = -1
        try:
            while not (await asyncio.wait({task}, timeout=PROGRESS_INTERVAL_S))[0]:
                if upload.completed != reported:
                    reported = upload.completed
                    yield _push_progress(layer, reported)
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if reported != layer.size:
            yield _push_progress(layer, layer.size)

    def _read_stored_manifest(self, name: Name) -> tuple[bytes, tuple[Layer, ...]]:
        """Return the manifest's bytes and its layers.  Raises StoreError if a blob is missing."""
        path = self._writer.manifest_path(name)
        try:
            data = safe_open.read(path, blobs.MAX_MANIFEST_BYTES)
        except OSError as error:
            raise StoreError(f"open {path}: {(error.strerror or str(error)).lower()}") from error
        layers = layers_of(parse_manifest(data, f"the manifest {path}"))
        for layer in layers:
            if not self._has(layer):
                raise StoreError(f"the blob {layer.digest} of {name.short} is missing or damaged")
        return data, layers

    async def _resolve_name(self, model: str) -> Name:
        """Parse a name; return it with the case that it has in the store."""
        name = names.parse(model)
        return await self._disk.do(lambda: self._writer.name_on_disk(name))

    # ------------------------------------------------------------------ connection

    def _remote(self, name: Name, *, insecure: bool) -> Remote:
        if name.scheme == "http" and not insecure:
            raise RegistryError("insecure protocol http")
        if self._sessions is None:
            self._sessions = sessions.open_sessions(headers={hdrs.USER_AGENT: USER_AGENT})
        return Remote(
            self._sessions, name, insecure=insecure, identity=self._identity, timers=self._timers
        )

    async def _identity(self) -> SigningKey | None:
        """Return the user's key; None if none can be read or made, as public models need none."""
        if self._known is None and self._keys is not None:
            folder = self._keys
            try:
                self._known = await self._disk.do(lambda: load_signing_key(folder))
            except RegistryError as error:
                log.warning("%s; continuing without a signature", error)
        return self._known


async def _fetch_size(remote: Remote, layer: Layer) -> Layer:
    """Return the layer with its size, which the registry is asked for if the manifest lacks it."""
    if layer.size > 0:
        return layer
    answer = await remote.ask(hdrs.METH_HEAD, remote.url / "blobs" / layer.digest)
    with contextlib.suppress(ValueError):
        size = int(answer.headers.get(hdrs.CONTENT_LENGTH, ""))
        return Layer(layer.media_type, layer.digest, size, layer.parent)
    raise RegistryError(f"the registry does not report the size of {layer.digest}")


def _push_progress(layer: Layer, completed: int) -> core.Progress:
    return core.Progress(
        status=f"pushing {layer.digest[7:19]}",
        digest=layer.digest,
        total=layer.size,
        completed=completed,
    )
