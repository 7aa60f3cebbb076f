"""Many long answers that no client reads: memory is bounded, and freed when the clients leave."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil
import pytest

from specd.api.body_budget import MAX_ANSWERS_BYTES, MAX_CONVERSIONS
from tests.daemon_process import FAKE_ENGINE, running
from tests.faults.conftest import Wire, post
from tests.gguf_files import VOCABULARY, OllamaStore, write_llama

MIB = 2**20
N_TOKEN = 40 * MIB
#: Together half more than there is room for.
N_CLIENTS = 3 * MAX_ANSWERS_BYTES // (2 * N_TOKEN)


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_unread_answers_use_bounded_memory(tmp_path: Path) -> None:
    vocabulary = VOCABULARY.with_token(5, "x" * N_TOKEN)
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", vocabulary=vocabulary)
    )
    raw = post("/api/show", json.dumps({"model": "m", "verbose": True}).encode())
    with (tmp_path / "log").open("wb") as log:
        async with running(tmp_path, engine=FAKE_ENGINE, log=log.fileno()) as daemon:
            wire = Wire(daemon, tmp_path / "log")
            process = psutil.Process(daemon.process.pid)
            before = process.memory_info().rss
            async with contextlib.AsyncExitStack() as crowd:
                for _ in range(N_CLIENTS):
                    _, writer = await crowd.enter_async_context(wire.connect())
                    writer.write(raw)
                while b"status=503" not in (tmp_path / "log").read_bytes():
                    async with daemon.http.get("/api/version") as reply:
                        assert reply.status == 200
            # What is sent, and those that are made: read, as a text, escaped and encoded.
            most = MAX_ANSWERS_BYTES + MAX_CONVERSIONS * 6 * N_TOKEN
            assert wire.peak_bytes() - before < most + 64 * MIB
            # Those that were being made when their clients left end first.
            async with daemon.http.post("/api/show", data=raw.partition(b"\r\n\r\n")[2]) as reply:
                assert reply.status == 200
                assert len(await reply.read()) > N_TOKEN
            while process.memory_info().rss > before + 2 * N_TOKEN:
                async with daemon.http.get("/api/version") as reply:
                    assert reply.status == 200
