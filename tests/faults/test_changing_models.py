"""A model is deleted and created again, over and over, while clients use it."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, running
from tests.gguf_files import write_llama

pytestmark = [pytest.mark.native, pytest.mark.timeout(180)]

ASKS: dict[str, dict[str, Any]] = {
    "/api/generate": {"prompt": "x"},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}]},
    "/api/show": {},
}


class Changing:
    """Two sets of weights that take turns under the name "m"."""

    def __init__(self, daemon: Daemon, *weights: bytes) -> None:
        self._daemon = daemon
        self._weights = weights
        self._n_made = 0

    async def make(self) -> None:
        data = self._weights[self._n_made % len(self._weights)]
        self._n_made += 1
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        async with self._daemon.http.post(f"/api/blobs/{digest}", data=data) as response:
            assert response.status in {200, 201}, await response.text()
        body = {"model": "m", "files": {"m.gguf": digest}, "stream": False}
        async with self._daemon.http.post("/api/create", json=body) as response:
            assert response.status == 200, await response.text()

    async def delete(self) -> None:
        async with self._daemon.http.delete("/api/delete", json={"model": "m"}) as response:
            assert response.status == 200, await response.text()

    async def change(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self.delete()
            await self.make()

    async def ask(self, path: str) -> tuple[int, str]:
        """Send a request; with keep_alive 0, each one loads the model."""
        body = {"model": "m", "stream": False, "keep_alive": 0, "options": {"num_predict": 1}}
        async with self._daemon.http.post(path, json=body | ASKS[path]) as response:
            return response.status, await response.text()


async def test_a_changing_model_answers_or_is_not_found(tmp_path: Path) -> None:
    weights = [write_llama(tmp_path / f"{seed}.gguf", seed=seed).read_bytes() for seed in (1, 2)]
    async with running(tmp_path) as daemon:
        changing, over = Changing(daemon, *weights), asyncio.Event()
        await changing.make()
        changes = asyncio.create_task(changing.change(over))

        async def ask_all() -> list[tuple[int, str]]:
            return [await changing.ask(path) for _ in range(6) for path in ASKS]

        asked = await asyncio.gather(*(ask_all() for _ in range(4)))
        answers = [answer for one in asked for answer in one]
        over.set()
        await changes
        assert {status for status, _ in answers} <= {200, 404}, answers
        assert (await changing.ask("/api/generate"))[0] == 200
