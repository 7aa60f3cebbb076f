"""The daemon is killed while clients change the store: each change is done or not, never half."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.faults.disks import Answer, Served, served
from tests.registry.fake_registry import FakeRegistry
from tests.store.manifests import check_whole

N_CLIENTS: Final = 4
#: After how many answers the daemon is killed, each time.
KILLED_AFTER: Final = (1, 3, 7, 15, 31)


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_a_daemon_killed_during_changes_leaves_a_consistent_store(tmp_path: Path) -> None:
    async with FakeRegistry().serve() as registry:
        for n in range(N_CLIENTS):
            registry.add(f"me/pulled{n}/x", b"shared layer", b"own layer %d " % n * 50_000)
        for n_answers in KILLED_AFTER:
            async with served(tmp_path) as here:
                check_whole(here.store.root)
                await here.is_well()
                counted = Counted(here, n_answers)
                clients = (client(counted, n, registry) for n in range(N_CLIENTS))
                said = await asyncio.gather(*clients, return_exceptions=True)
                assert [type(each) for each in said] == [Lost] * N_CLIENTS
            check_whole(tmp_path / "models")
        async with served(tmp_path) as here:
            await here.is_well()
            for n in range(N_CLIENTS):
                for request in requests(here, n, registry):
                    assert (await request()).done
            check_whole(here.store.root)
            await here.is_well()


class Lost(Exception):
    """The connection failed because the daemon was killed."""


class Counted:
    """Kills the daemon at the n-th answer."""

    def __init__(self, here: Served, n: int) -> None:
        self.here = here
        self._left = n

    def another(self) -> None:
        self._left -= 1
        if not self._left:
            self.here.daemon.process.kill()


async def client(counted: Counted, n: int, registry: FakeRegistry) -> None:
    for request in itertools.cycle(requests(counted.here, n, registry)):
        try:
            said = await request()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Lost from error
        # Another client may have changed the shared model first.
        assert said.done or said.status == 404 or "gone" in said.error, said
        counted.another()


def requests(
    here: Served, n: int, registry: FakeRegistry
) -> list[Callable[[], Coroutine[Any, Any, Answer]]]:
    name = f"made{n}"
    made = {"model": name, "from": "m", "system": f"Be brief, {n}."}
    body = {"model": registry.name(f"me/pulled{n}/x"), "insecure": True}
    return [
        lambda: here.upload(b"uploaded %d " % n * 50_000),
        lambda: here.post("/api/create", **made),
        lambda: here.post("/api/pull", **body),
        lambda: here.post("/api/copy", source=name, destination="everybodys"),
        lambda: here.ask("DELETE", "/api/delete", model=body["model"]),
        lambda: here.ask("DELETE", "/api/delete", model=name),
    ]
