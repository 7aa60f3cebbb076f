"""Pulls with random faults: the model is complete at the end, or absent."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from specd.errors import SpecdError
from specd.registry.download import STALL_S
from tests.fast import thinned
from tests.registry.conftest import Client
from tests.registry.fake_registry import FakeRegistry, Fault, cut, damaged, digest_of, stall, status

WEIGHTS = random.Random(4).randbytes(23_456)


def mishap(chance: random.Random, stalled: asyncio.Event) -> Fault:
    n = chance.randrange(1100)
    faults: list[Fault] = [cut(n), stall(n, stalled), status(500), status(403), status(429)]
    faults += [damaged] if chance.random() < 0.05 else []
    return chance.choice(faults)


@pytest.mark.parametrize("seed", thinned(range(12), 6))
async def test_a_model_is_complete_or_absent_after_any_faults(
    seed: int, clients: Callable[[str], Client], remote: FakeRegistry
) -> None:
    chance, stalled = random.Random(seed), asyncio.Event()
    remote.add("me/m/x", WEIGHTS, b"small")
    remote.storage = chance.random() < 0.5
    name, client = remote.name("me/m/x"), clients("store")
    for _ in range(12):
        remote.ranges = chance.random() < 0.9
        remote.faults.clear()
        remote.faults.extend(mishap(chance, stalled) for _ in range(chance.randrange(40)))
        pulls = [asyncio.create_task(client.pull(name)) for _ in range(chance.randrange(1, 4))]
        for pull in pulls[: chance.randrange(len(pulls) + 1)]:
            await asyncio.wait(pulls, timeout=chance.random() * 0.01)
            pull.cancel()
        for turn in itertools.count():
            # Small answers may stall too; their timeout is longer.
            client.timers.expire(STALL_S if turn % 20 else None)
            await asyncio.wait(pulls, timeout=0.01)
            if all(pull.done() for pull in pulls):
                break
        failed = await asyncio.gather(*pulls, return_exceptions=True)
        assert all(
            isinstance(outcome, list | SpecdError | asyncio.CancelledError) for outcome in failed
        ), failed
        if client.manifests():
            assert client.writer.blob_path(digest_of(WEIGHTS)).read_bytes() == WEIGHTS
    remote.faults.clear()
    await client.pull(name)
    assert client.writer.blob_path(digest_of(WEIGHTS)).read_bytes() == WEIGHTS
    assert not [path for path in client.files() if "-partial" in path]
