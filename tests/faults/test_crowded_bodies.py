"""Many long bodies at once: some are served, others get status 503, memory is bounded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from specd.api.body_budget import MAX_BODIES_BYTES, MAX_BODY_BYTES
from tests.daemon_process import FAKE_ENGINE, running
from tests.faults.conftest import Wire, post
from tests.gguf_files import OllamaStore, write_llama

MIB = 2**20
N_CLIENTS = 16


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_sixteen_bodies_of_100_mib_at_once_use_bounded_memory(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    asked = {"model": "m", "prompt": "a b", "stream": False}
    # The letters take four bytes each once they are a text of Python's.
    rest = ("💣" * 4000).encode() + b"x" * (100 * MIB)
    long = json.dumps(asked).encode()[:-1] + b',"unread":"' + rest + b'"}'
    assert len(long) < MAX_BODY_BYTES
    with (tmp_path / "log").open("wb") as log:
        async with running(tmp_path, engine=FAKE_ENGINE, log=log.fileno()) as daemon:
            wire = Wire(daemon, tmp_path / "log")
            assert (await daemon.answer("a"))[-1]["done"]
            before = psutil.Process(daemon.process.pid).memory_info().rss
            raw = post("/api/generate", long)
            crowd = [asyncio.ensure_future(wire.send(raw)) for _ in range(N_CLIENTS)]
            while not all(each.done() for each in crowd):
                assert (await daemon.answer("still here"))[-1]["done"]
            statuses = {reply.status for each in crowd if (reply := each.result()) is not None}
            assert statuses <= {200, 503}
            assert 503 in statuses
            # One that is alone is served.
            reply = await wire.send(raw)
            assert reply is not None
            assert (reply.status, reply.json["response"]) == (200, "a b ")
            # All that was read, and two that are decoded: their text of four bytes a letter.
            assert wire.peak_bytes() - before < 2 * MAX_BODIES_BYTES + 2 * 5 * MAX_BODY_BYTES
