"""A store, a registry and timers that do not wait, for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specd import core
from specd.registry import Registry
from specd.registry.transfer_context import Sizes, TransferTimers
from specd.store import StoreWriter
from tests.registry.fake_registry import FakeRegistry

#: Parts of 4000 bytes and spans of 1000, where Ollama's have 100 MB.
SMALL = Sizes(min_part=4000, max_part=8000, span=1000)


class FakeWaits(TransferTimers):
    """Timers that do not wait; a watch ends when `expire` is called."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._watches: dict[asyncio.Timeout, float] = {}

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def watch(self, seconds: float) -> AsyncIterator[Callable[[], None]]:
        async with asyncio.timeout(None) as limit:
            self._watches[limit] = seconds
            try:
                yield lambda: None
            finally:
                del self._watches[limit]

    def expire(self, seconds: float | None = None) -> None:
        """Expire the current watches of that length; None expires all."""
        for limit in [limit for limit, of in self._watches.items() if seconds in {None, of}]:
            limit.reschedule(asyncio.get_running_loop().time())


@dataclass
class Client:
    """A daemon's registry client with its own store."""

    root: Path
    keys: Path | None
    sizes: Sizes = SMALL
    timers: FakeWaits = field(default_factory=FakeWaits)
    registry: Registry = field(init=False)

    def __post_init__(self) -> None:
        self.writer = StoreWriter(self.root)
        self.registry = Registry(self.writer, keys=self.keys, timers=self.timers, sizes=self.sizes)

    async def pull(self, name: str) -> list[core.Progress]:
        return [line async for line in self.registry.pull(name, insecure=True)]

    async def push(self, name: str) -> list[core.Progress]:
        return [line async for line in self.registry.push(name, insecure=True)]

    async def pull_until(self, name: str, enough: Callable[[core.Progress], bool]) -> None:
        """Pull until a line satisfies the condition, then cancel."""
        async with aclosing(self.registry.pull(name, insecure=True)) as lines:
            async for line in lines:
                if enough(line):
                    return

    def files(self) -> set[str]:
        """Return the paths of the store's files, relative to its root."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}

    def manifests(self) -> set[str]:
        return {path for path in self.files() if path.startswith("manifests/")}


@pytest.fixture
async def remote() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry().serve() as registry:
        yield registry


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Callable[[str], Client]]:
    """Return a function that makes clients by name; equal names share a store."""
    made: list[Client] = []

    def make(name: str) -> Client:
        made.append(Client(tmp_path / name, tmp_path / "keys"))
        return made[-1]

    yield make
    for client in made:
        await client.registry.close()


@pytest.fixture
def client(clients: Callable[[str], Client]) -> Client:
    return clients("store")
