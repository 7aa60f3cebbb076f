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

import msgspec
from aiohttp import hdrs

from specd import core
from specd.errors import RegistryError, RegistryUnreachable, StoreError
from specd.registry import sessions
from specd.registry.authentication import SigningKey, load_signing_key
from specd.registry.downloads import PROGRESS_INTERVAL_S, Downloads, layer_progress
from specd.registry.partial import bytes_on_disk
from specd.registry.remote import USER_AGENT, RegistryRefused, Remote, is_retryable
from specd.registry.transfer_context import Sizes, Traffic, TransferContext, TransferTimers
from specd.registry.upload import Upload
from specd.store import BlobLock, Name, StoreWriter, blobs, safe_files
from specd.store import name as names
from specd.store.demo import NAME as DEMO
from specd.store.file_threads import FileThreads
from specd.store.manifest import MANIFEST_MEDIA_TYPE, Layer, Manifest, media_type, parse_manifest

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
        manifest, layers = await _fetch_manifest(remote, name.tag)
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
        if await self._disk.do(partial(self._writer.has_blob, layer.digest, layer.size)):
            yield layer_progress("pulling", layer.digest, layer.size, layer.size)
            return
        async with aclosing(self._downloads.follow(remote, layer.digest, layer.size)) as lines:
            async for line in lines:
                yield line

    def _check_space(self, layers: Sequence[Layer]) -> None:
        """Raise StoreError now if the disk is too small for the missing blobs."""
        self._writer.prepare()
        with safe_files.to_store_errors(f"write to {self._writer.root}"):
            missing = {
                layer.digest: layer.size
                for layer in layers
                if not self._writer.has_blob(layer.digest, layer.size)
            }
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
        await remote.ask(
            hdrs.METH_PUT,
            remote.url / "manifests" / name.tag,
            headers={hdrs.CONTENT_TYPE: MANIFEST_MEDIA_TYPE},
            body=manifest,
        )
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
                    yield layer_progress("pushing", layer.digest, layer.size, reported)
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if reported != layer.size:
            yield layer_progress("pushing", layer.digest, layer.size, layer.size)

    def _read_stored_manifest(self, name: Name) -> tuple[bytes, tuple[Layer, ...]]:
        """Return the manifest's bytes and its layers.  Raises StoreError if a blob is missing."""
        path = self._writer.manifest_path(name)
        if name.key == DEMO.key and not path.exists():
            raise StoreError(f"{name.short} is built in and cannot be pushed")
        try:
            data = safe_files.read(path, blobs.MAX_MANIFEST_BYTES)
        except OSError as error:
            raise StoreError(f"open {path}: {(error.strerror or str(error)).lower()}") from error
        layers = _layers_of(parse_manifest(data, f"the manifest {path}"))
        for layer in layers:
            if not self._writer.has_blob(layer.digest, layer.size):
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


# --------------------------------------------------------------------------- manifests


async def _fetch_manifest(remote: Remote, tag: str) -> tuple[bytes, tuple[Layer, ...]]:
    """Return the manifest's exact bytes, and what to download: the layers, then the config.

    Raises RegistryError in Ollama's words.
    """
    try:
        url = remote.url / "manifests" / tag
        answer = await remote.ask(hdrs.METH_GET, url, headers={hdrs.ACCEPT: MANIFEST_MEDIA_TYPE})
        return answer.body, _layers(answer.body)
    except RegistryError as error:
        message = f"pull model manifest: {error}"
        is_temporary = isinstance(error, RegistryRefused) and is_retryable(error.status)
        if is_temporary or isinstance(error, RegistryUnreachable):
            raise RegistryUnreachable(message) from error
        raise RegistryError(message) from error


def _layers(data: bytes) -> tuple[Layer, ...]:
    """Return the layers of a manifest.  Raises RegistryError if it is not a model's."""
    try:
        manifest = parse_manifest(data, "the manifest")
    except StoreError as error:
        raise RegistryError(_explain_rejection(data)) from error
    if not any(layer.media_type.startswith(media_type("")) for layer in manifest.layers):
        raise RegistryError("the registry has an image of another kind under this name, no model")
    return _layers_of(manifest)


def _layers_of(manifest: Manifest) -> tuple[Layer, ...]:
    """Return the blobs in the order of transfer: the layers, then the config if there is one."""
    return (*manifest.layers, *([manifest.config] if manifest.config.digest else []))


def _explain_rejection(data: bytes) -> str:
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "the registry's answer is not a manifest"
    if "manifests" in fields:
        return "the registry has a list of images under this name, not a model"
    return "the registry's manifest is not the manifest of a model"


async def _fetch_size(remote: Remote, layer: Layer) -> Layer:
    """Return the layer with its size, which the registry is asked for if the manifest lacks it."""
    if layer.size > 0:
        return layer
    answer = await remote.ask(hdrs.METH_HEAD, remote.url / "blobs" / layer.digest)
    with contextlib.suppress(ValueError):
        size = int(answer.headers.get(hdrs.CONTENT_LENGTH, ""))
        return msgspec.structs.replace(layer, size=size)
    raise RegistryError(f"the registry does not report the size of {layer.digest}")
