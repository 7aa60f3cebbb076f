"""Errors of real engines, as clients see them."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.daemon_process import Daemon, ended, running
from tests.gguf_files import OllamaStore, write_llama, write_truncated, write_unknown_architecture

pytestmark = pytest.mark.native

#: Answers that continue until they are stopped.
ENDLESS: dict[str, Any] = {"model": "endless", "options": {"num_predict": -1, "temperature": 0}}


async def first_line(response: Any) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(await response.content.readline())
    return line


def engine_of(daemon: Daemon, before: set[int]) -> psutil.Process:
    [engine] = [process for process in daemon.engines() if process.pid not in before]
    return engine


async def test_a_killed_engine_fails_one_answer_and_no_other(
    daemon: Daemon,
) -> None:
    async with daemon.generate("a", **ENDLESS) as other:
        await first_line(other)
        untouched = {process.pid for process in daemon.engines()}
        long = {"num_predict": -1, "temperature": 1.5, "top_k": 0}
        async with daemon.generate("def f(", model="specd-demo", options=long) as response:
            await first_line(response)
            engine_of(daemon, untouched).send_signal(signal.SIGKILL)
            lines = [json.loads(line) async for line in response.content]
        # A short answer may end before the signal arrives, and then has no error.
        assert "error" in lines[-1] or lines[-1]["done"]
        assert all("error" not in line for line in lines[:-1])
        assert "response" in await first_line(other)
    answer = await daemon.answer("def f(", model="specd-demo", options={"num_predict": 4})
    assert answer[-1]["done"]


@pytest.mark.contract("sched.crash", "stream.late-error")
async def test_a_killed_engine_gives_ollamas_error_text(daemon: Daemon) -> None:
    async with daemon.generate("a", **ENDLESS) as response:
        await first_line(response)
        [engine] = daemon.engines()
        engine.send_signal(signal.SIGKILL)
        lines = [json.loads(line) async for line in response.content]
    assert lines[-1]["error"].startswith("model runner has unexpectedly stopped")
    assert "done" not in lines[-1]
    assert (await daemon.answer("a", model="endless", options={"num_predict": 2}))[-1]["done"]


@pytest.mark.contract("sched.crash")
async def test_an_engine_that_dies_while_idle_fails_no_answer(daemon: Daemon) -> None:
    for _ in range(3):
        await daemon.answer("a", model="endless", options={"num_predict": 1})
        [engine] = daemon.engines()
        engine.send_signal(signal.SIGKILL)
        answer = await daemon.answer("b", model="endless", options={"num_predict": 1})
        assert answer[-1]["done"], answer


@pytest.mark.contract("sched.leave")
async def test_a_client_that_disconnects_frees_the_only_slot(daemon: Daemon) -> None:
    async with daemon.generate("a", **ENDLESS) as response:
        await first_line(response)
        response.close()
    # One slot: this answer can only come once the endless one has left it.
    answer = await daemon.answer("b", model="endless", options={"num_predict": 3})
    assert answer[-1]["eval_count"] == 3


@pytest.mark.contract("sched.shutdown", "stream.one-end")
async def test_sigterm_ends_running_answers_with_an_error_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    OllamaStore(tmp_path / "models").add("endless", weights=write_llama(tmp_path / "e.gguf"))
    async with running(tmp_path, SPECD_SHUTDOWN_GRACE="0s") as daemon:
        async with daemon.generate("a", **ENDLESS) as response:
            await first_line(response)
            engines = daemon.children()
            daemon.process.send_signal(signal.SIGTERM)
            lines = [json.loads(line) async for line in response.content]
        assert "error" in lines[-1]
        assert await daemon.process.wait() == 0
        assert await ended(engines)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(daemon.url.rpartition(":")[2]))


async def test_a_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add("endless", weights=write_llama(tmp_path / "e.gguf"))
    async with running(tmp_path) as daemon, daemon.generate("a", **ENDLESS) as response:
        await first_line(response)
        engines = daemon.children()
        daemon.process.kill()
        assert await ended(engines)


@pytest.mark.contract("sched.load-failure", "store.damage")
async def test_bad_files_get_a_clear_error_and_the_daemon_survives(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("good", weights=write_llama(tmp_path / "good.gguf"))
    store.add("strange", weights=write_unknown_architecture(tmp_path / "strange.gguf"))
    store.add("cut", weights=write_llama(tmp_path / "cut.gguf", seed=5))
    write_truncated(store.weights_path("cut"))
    async with running(tmp_path) as daemon:
        for name, reason in (("strange", "unknown model architecture"), ("cut", "")):
            async with daemon.generate("x", model=name, stream=False) as response:
                assert response.status == 500
                error = (await response.json())["error"]
            assert store.weights_path(name).name in error
            assert reason in error
        async with daemon.http.get("/api/tags") as response:
            assert response.status == 200
        answer = await daemon.answer("x", model="good", options={"num_predict": 2})
        assert answer[-1]["done"]


@pytest.mark.contract("generate.context-range")
async def test_a_context_with_ids_out_of_range_is_refused_and_the_engine_survives(
    daemon: Daemon,
) -> None:
    await daemon.answer("a", model="endless", options={"num_predict": 1})
    engines = daemon.engines()
    for context in ([10**6], [-1], [2**31]):
        async with daemon.generate("a", model="endless", context=context) as response:
            assert response.status == 400
            assert "out of range" in (await response.json())["error"]
    assert daemon.engines() == engines
    assert (await daemon.answer("a", model="endless", options={"num_predict": 1}))[-1]["done"]


@pytest.mark.contract("generate.context")
async def test_the_context_of_an_answer_continues_the_conversation(daemon: Daemon) -> None:
    first = (await daemon.answer("a", model="endless", options={"num_predict": 5}))[-1]
    second = await daemon.answer(
        "b", model="endless", context=first["context"], options={"num_predict": 1}
    )
    assert second[-1]["prompt_eval_count"] > len(first["context"])


async def test_an_endless_template_fails_only_its_own_request(tmp_path: Path) -> None:
    endless = "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    store = OllamaStore(tmp_path / "models")
    store.add("good", weights=write_llama(tmp_path / "good.gguf"))
    weights = write_llama(tmp_path / "hostile.gguf", chat_template=endless)
    store.add("hostile", weights=weights)
    async with running(tmp_path) as daemon:

        async def ask(model: str) -> int:
            options = {"num_predict": 2}
            async with daemon.generate("x", model=model, stream=False, options=options) as reply:
                return int(reply.status)

        assert await asyncio.gather(*(ask("hostile") for _ in range(6)), ask("good")) == [
            *([400] * 6),
            200,
        ]
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.process.wait() == 0
