"""Writers of files that must be complete, by name; `killed.py` kills them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from specd import core
from specd.create import CreateRequest, Creator
from specd.install import HostSystem, layout
from specd.install.steps import Undo, link_file, put_file
from specd.pairs import user_file
from specd.pairs.history import History, HistoryKey
from specd.pairs.vocabularies import Vocabularies
from specd.placement import MemoryCorrections
from specd.registry import Registry
from specd.registry.authentication import load_signing_key
from specd.store import AsyncWriter, StoreWriter
from specd.store.name import parse
from tests.store.manifests import digest, manifest

NEW: Final = (b"new layer", b"shared")
UPLOADED: Final = b"uploaded " * 100
LEARNED: Final = core.PairHistory(target_s=((1, 0.01),))
KEY: Final = HistoryKey("t", "d", "f16", True, 0, None, 1, "here")
SETTINGS: Final = b"# every setting\n" * 100
#: The address of the registry to pull from, in the environment.
REGISTRY: Final = "KILLED_REGISTRY"


def put(root: Path) -> None:
    StoreWriter(root).put(b"new layer")


def publish(root: Path) -> None:
    writer = StoreWriter(root)
    for layer in NEW:
        writer.put(layer)
    writer.publish(parse("m"), manifest(*NEW))


def delete(root: Path) -> None:
    writer = StoreWriter(root)
    if writer.manifest_path(parse("m")).exists():
        writer.delete(parse("m"))


def copy(root: Path) -> None:
    StoreWriter(root).copy(parse("m"), parse("a/copy:v1"))


def copy_over(root: Path) -> None:
    StoreWriter(root).copy(parse("other"), parse("m"))


def prune(root: Path) -> None:
    StoreWriter(root).prune()


def receive(root: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield UPLOADED[:300]
        yield UPLOADED[300:]

    asyncio.run(AsyncWriter(StoreWriter(root)).receive(digest(UPLOADED), chunks()))


def pull(root: Path) -> None:
    async def pulled() -> None:
        registry = Registry(StoreWriter(root), keys=None)
        async for _ in registry.pull(f"{os.environ[REGISTRY]}/me/m:x", insecure=True):
            pass
        await registry.close()

    asyncio.run(pulled())


def create(root: Path) -> None:
    async def created() -> None:
        creator = Creator(StoreWriter(root), check_template=lambda _: None)
        request = CreateRequest(model="made", base="gguf", system="Be brief.")
        async for _ in creator.create(request):
            pass

    asyncio.run(created())


def identity(folder: Path) -> None:
    load_signing_key(folder)


def history(folder: Path) -> None:
    kept = History(folder / "history.json")
    kept.put(KEY, LEARNED)
    assert kept.save()


def forget(folder: Path) -> None:
    History(folder / "history.json").forget(lambda _: True)


def memory(folder: Path) -> None:
    MemoryCorrections(folder / "memory.json").record_process_bytes("new", 2**20)


def vocabularies(folder: Path) -> None:
    known = Vocabularies(folder / "vocabularies.json")
    for weights in (folder / "blobs").iterdir():
        known.facts(weights)
    known.save()


def set_aside(folder: Path) -> None:
    assert not History(folder / "history.json").entries()


def pairs_add(folder: Path) -> None:
    user_file.add(folder / "specd" / "pairs.toml", "target", ["drafter"])


def pairs_remove(folder: Path) -> None:
    user_file.remove(folder / "specd" / "pairs.toml", "old")


class OwnMachine(HostSystem):
    """A host where the current user owns the files that root would own."""

    def own(self, path: Path, group: str) -> None:
        assert group == layout.USER
        os.chown(path, os.getuid(), os.getgid())


def settings_file(folder: Path) -> None:
    put_file(layout.ENV_FILE, SETTINGS, 0o640, layout.USER).do(OwnMachine(folder), Undo())


def command(folder: Path) -> None:
    link_file(layout.COMMAND, "new").do(OwnMachine(folder), Undo())


WRITERS: Final[dict[str, Callable[[Path], None]]] = {
    writer.__name__: writer
    for writer in (
        *(put, publish, delete, copy, copy_over, prune, receive, pull, create, identity),
        *(history, forget, memory, vocabularies, set_aside, pairs_add, pairs_remove),
        *(settings_file, command),
    )
}
