"""Contract 1.3's rows that need a fault, and 1.4: errors before and after the first byte."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.conftest import ContractClient
from tests.daemon_process import FAKE_ENGINE, ROOT, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON_UTF8 = "application/json; charset=utf-8"
_SILENCE = """
import socket, sys
if sys.argv[1:] == ["devices"]:
    print("[]")
    sys.exit()
from specd.ipc.parent_death import die_with_parent
die_with_parent()
daemon = socket.socket(fileno=int(sys.argv[-1]))
while daemon.recv(65536):  # it may have died before it could be a parent
    pass
"""
#: Starts, and never reports that it has loaded.
STALLING = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", _SILENCE)
ASKING: dict[str, dict[str, Any]] = {
    "generate": {"model": "m", "prompt": "x"},
    "chat": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "embed": {"model": "embedder", "input": "x"},
    "embeddings": {"model": "embedder", "prompt": "x"},
}
CRASH = [{"role": "user", "content": "crash"}]
BUSY = "server busy, please try again.  maximum pending requests exceeded"
GONE = (
    "model runner has unexpectedly stopped, this may be due to resource limitations"
    " or an internal error, check ollama server logs for details"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crashing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractClient]:
    """Yield a client; its engine repeats the prompt, but dies after two words at `crash`."""
    folder = tmp_path_factory.mktemp("crashing")
    store = lay_out(folder)
    async with running(folder, engine=FAKE_ENGINE) as daemon:
        yield ContractClient(daemon, store)


def lay_out(folder: Path) -> OllamaStore:
    store = OllamaStore(folder / "models")
    bare = "{{ messages[-1].content }}"
    store.add("m", weights=write_llama(folder / "m.gguf", chat_template=bare))
    pooled = write_llama(folder / "e.gguf", extra={"llama.pooling_type": 1})
    store.add("embedder", weights=pooled)
    return store


# --------------------------------------------------------------------------- before any byte


@pytest.mark.contract("sched.queue", "stream.early-error", "env.max-queue")
@pytest.mark.parametrize("path", ASKING)
async def test_one_too_many_for_the_queue_is_503(tmp_path: Path, path: str) -> None:
    store = lay_out(tmp_path)
    async with running(tmp_path, engine=STALLING, OLLAMA_MAX_QUEUE="1") as daemon:
        contract_client = ContractClient(daemon, store)
        asked = [asyncio.create_task(contract_client.ask(path, ASKING[path])) for _ in range(3)]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        reply = done.pop().result()
        assert (reply.status, reply.type, reply.json) == (503, JSON_UTF8, {"error": BUSY})
        assert waiting
        for task in waiting:
            task.cancel()


@pytest.mark.contract("sched.load-stall", "stream.early-error")
async def test_a_load_that_stalls_is_500(tmp_path: Path) -> None:
    store = lay_out(tmp_path)
    async with running(tmp_path, engine=STALLING, OLLAMA_LOAD_TIMEOUT="50ms") as daemon:
        for path, body in ASKING.items():
            reply = await ContractClient(daemon, store).ask(path, body)
            text = "timed out waiting for the engine to start - progress 0.00"
            assert (reply.status, reply.type, reply.json) == (500, JSON_UTF8, {"error": text})


@pytest.mark.contract("sched.crash")
@pytest.mark.parametrize(
    "path, fields",
    [
        ("generate", {"prompt": "crash", "stream": False}),
        ("chat", {"messages": CRASH, "stream": False}),
        ("embed", {"input": "crash"}),
        ("embeddings", {"prompt": "crash"}),
    ],
)
async def test_an_engine_that_dies_before_the_first_byte_is_500(
    crashing: ContractClient, path: str, fields: dict[str, Any]
) -> None:
    reply = await crashing.ask(path, ASKING[path] | fields)
    assert (reply.status, reply.type) == (500, JSON_UTF8)
    assert reply.json["error"].startswith(GONE)


# --------------------------------------------------------------------------- in mid-stream


@pytest.mark.contract("stream.late-error", "sched.crash")
@pytest.mark.parametrize("path", ["generate", "chat"])
async def test_an_error_after_the_first_line_is_the_last_line(
    crashing: ContractClient, path: str
) -> None:
    said = {"prompt": "crash"} if path == "generate" else {"messages": CRASH}
    reply = await crashing.ask(path, {"model": "m"} | said)
    assert (reply.status, reply.type) == (200, "application/x-ndjson")
    first, last = reply.lines
    told = first["response"] if path == "generate" else first["message"]["content"]
    assert (told, first["done"]) == ("last words", False)
    assert list(last) == ["error"]
    assert last["error"].startswith(GONE)


@pytest.mark.contract("openai.stream-error", "anthropic.stream-error")
@pytest.mark.parametrize(
    "path, fields, last",
    [
        ("/v1/chat/completions", {"messages": CRASH}, "data: "),
        ("/v1/completions", {"prompt": "crash"}, "data: "),
        ("/v1/responses", {"input": "crash"}, "event: response.failed"),
        ("/v1/messages", {"messages": CRASH, "max_tokens": 9}, "event: error"),
    ],
)
async def test_an_error_in_a_stream_of_events_is_its_last_event(
    crashing: ContractClient, path: str, fields: dict[str, Any], last: str
) -> None:
    reply = await crashing.ask(path, {"model": "m", "stream": True} | fields)
    assert reply.status == 200
    assert reply.type.startswith("text/event-stream")
    events = reply.body.decode().strip().split("\n\n")
    assert "last words" in "".join(events[:-1])
    assert events[-1].startswith(last)
    assert GONE in events[-1]
    assert "error" in events[-1]
    assert "[DONE]" not in events[-1]
