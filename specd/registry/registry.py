"""Pull and push, whole: what clients see of them, line by line (contract 5).

A model is visible when its manifest is written, and that is the last thing done.
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
from specd.registry.downloads import TICK_S, Downloads, pulling
from specd.registry.identity import Identity, load_identity
from specd.registry.manifests import fetch_manifest, layers_of, put_manifest
from specd.registry.means import Means, Sizes, Traffic
from specd.registry.partial import bytes_on_disk
from specd.registry.remote import USER_AGENT, Remote
from specd.registry.upload import Upload
from specd.registry.waits import Waits
from specd.store import Hold, Name, Writer, blobs, durable, regular
from specd.store import name as names
from specd.store.manifest import Layer, parse_manifest
from specd.store.threads import Threads

log = logging.getLogger(__name__)


class Registry:
    """keys: the folder of the user's key; None for nobody's.

    Use it inside of one event loop, and close it there.  `pull` and `push` raise InvalidName,
    RegistryError, StoreError and ShuttingDown; closing what they return is how a client leaves.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        keys: Path | None,
        waits: Waits | None = None,
        sizes: Sizes | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._waits = waits or Waits()
        self._disk = Threads("registry")
        self._means = Means(
            writer=writer,
            disk=self._disk,
            waits=self._waits,
            sizes=sizes or Sizes(),
            traffic=traffic or Traffic(),
        )
        self._downloads = Downloads(self._means)
        self._sessions: sessions.Sessions | None = None
        self._known: Identity | None = None

    async def close(self) -> None:
        """Stop what is under way; downloads go on from there the next time."""
        await self._downloads.close()
        if self._sessions is not None:
            await self._sessions.aclose()
        self._disk.close()

    # ------------------------------------------------------------------ pull

    async def pull(
        self, model: str, *, insecure: bool = False
    ) -> AsyncGenerator[core.Progress, None]:
        """Get a model, or what of it is new.  insecure: over plain HTTP."""
        name = await self._named(model)
        await self._disk.do(partial(self._writer.check_name, name))
        remote = self._remote(name, insecure=insecure)
        yield core.Progress(status="pulling manifest")
        manifest, layers = await fetch_manifest(remote, name.tag)
        layers = tuple([await _with_size(remote, layer) for layer in layers])
        await self._disk.do(lambda: self._check_space(layers))
        hold = Hold(self._writer)
        try:
            for layer in layers:
                async with aclosing(self._pull_layer(remote, layer)) as lines:
                    async for line in lines:
                        yield line
                await self._disk.do(partial(hold.add, [layer.digest]))
            yield core.Progress(status="verifying sha256 digest")
            yield core.Progress(status="writing manifest")
            publish = partial(self._writer.publish, name, manifest, hold=hold)
            pruned = await self._writer.alone(publish)
        finally:
            hold.close()
        if pruned:
            yield core.Progress(status="removing unused layers")
        log.info("pulled %s", name.short)
        yield core.Progress(status="success")

    async def _pull_layer(
        self, remote: Remote, layer: Layer
    ) -> AsyncGenerator[core.Progress, None]:
        if await self._disk.do(lambda: self._has(layer)):
            yield pulling(layer.digest, layer.size, layer.size)
            return
        async with aclosing(self._downloads.follow(remote, layer.digest, layer.size)) as lines:
            async for line in lines:
                yield line

    def _has(self, layer: Layer) -> bool:
        """A blob of another size is a damaged one, and is downloaded again."""
        path = self._writer.blob_path(layer.digest)
        return path.is_file() and path.stat().st_size == layer.size

    def _check_space(self, layers: Sequence[Layer]) -> None:
        """Before hours of download, not after them."""
        self._writer.prepare()
        with durable.store_errors(f"write to {self._writer.root}"):
            missing = {layer.digest: layer.size for layer in layers if not self._has(layer)}
            needed = sum(
                size - bytes_on_disk(self._writer.partial_path(digest))
                for digest, size in missing.items()
            )
            free = shutil.disk_usage(self._writer.root / "blobs").free
        if needed > free:
            raise StoreError(
                f"no space left on device: {needed / 1e9:.1f} GB are still to come, and"
                f" {self._writer.root} has {free / 1e9:.1f} GB free"
            )

    # ------------------------------------------------------------------ push

    async def push(
        self, model: str, *, insecure: bool = False
    ) -> AsyncGenerator[core.Progress, None]:
        """Give a model to the registry that its name says."""
        name = await self._named(model)
        await self._disk.do(partial(self._writer.check_name, name))
        remote = self._remote(name, insecure=insecure)
        yield core.Progress(status="retrieving manifest")
        try:
            manifest, layers = await self._disk.do(lambda: self._stored(name))
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
        upload = Upload(remote, layer, self._means)
        task = asyncio.create_task(upload.run(), name=f"upload {layer.digest}")
        told = -1
        try:
            while not (await asyncio.wait({task}, timeout=TICK_S))[0]:
                if upload.completed != told:
                    told = upload.completed
                    yield _pushing(layer, told)
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if told != layer.size:
            yield _pushing(layer, layer.size)

    def _stored(self, name: Name) -> tuple[bytes, tuple[Layer, ...]]:
        """The manifest's own bytes, and its layers, each of which is in the store."""
        path = self._writer.manifest_path(name)
        try:
            data = regular.read(path, blobs.MAX_MANIFEST_BYTES)
        except OSError as error:
            raise StoreError(f"open {path}: {(error.strerror or str(error)).lower()}") from error
        layers = layers_of(parse_manifest(data, f"the manifest {path}"))
        for layer in layers:
            if not self._has(layer):
                raise StoreError(f"the blob {layer.digest} of {name.short} is missing or damaged")
        return data, layers

    async def _named(self, model: str) -> Name:
        """As the store spells it: names are found ignoring case."""
        name = names.parse(model)
        return await self._disk.do(lambda: self._writer.spelled(name))

    # ------------------------------------------------------------------ who asks, and how

    def _remote(self, name: Name, *, insecure: bool) -> Remote:
        if name.scheme == "http" and not insecure:
            raise RegistryError("insecure protocol http")
        if self._sessions is None:
            self._sessions = sessions.opened(headers={hdrs.USER_AGENT: USER_AGENT})
        return Remote(
            self._sessions, name, insecure=insecure, identity=self._identity, waits=self._waits
        )

    async def _identity(self) -> Identity | None:
        """None where there is no key and none can be made: public models need none."""
        if self._known is None and self._keys is not None:
            folder = self._keys
            try:
                self._known = await self._disk.do(lambda: load_identity(folder))
            except RegistryError as error:
                log.warning("%s; asking without it", error)
        return self._known


async def _with_size(remote: Remote, layer: Layer) -> Layer:
    """A manifest may leave sizes out."""
    if layer.size > 0:
        return layer
    answer = await remote.ask(hdrs.METH_HEAD, remote.url / "blobs" / layer.digest)
    with contextlib.suppress(ValueError):
        size = int(answer.headers.get(hdrs.CONTENT_LENGTH, ""))
        return Layer(layer.media_type, layer.digest, size, layer.parent)
    raise RegistryError(f"the registry does not say how long {layer.digest} is")


def _pushing(layer: Layer, completed: int) -> core.Progress:
    return core.Progress(
        status=f"pushing {layer.digest[7:19]}",
        digest=layer.digest,
        total=layer.size,
        completed=completed,
    )
