"""Helper processes that are killed or stopped: templates, grammars, quantization, engine starts."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from specd import core, errors
from specd.runner import Process
from specd.runner.quantize import quantize
from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.system
SIGNALS = [pytest.param(number, id=number.name) for number in (signal.SIGKILL, signal.SIGSTOP)]
#: A tenth of a second or more, each time that a new process looks at it.
SLOW = "{% for a in range(800) %}{% for b in range(800) %}{% endfor %}{% endfor %}x"


async def chat(daemon: Daemon, content: str, **fields: Any) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "stream": False}
    options = {"num_predict": 8}
    async with daemon.http.post("/api/chat", json=body | fields | {"options": options}) as reply:
        await reply.read()
        return int(reply.status)


def helpers(daemon: Daemon, module: str) -> list[psutil.Process]:
    return [process for process in daemon.children() if module in process.cmdline()]


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_killed_or_stopped_template_process_fails_no_request(
    tmp_path: Path, number: signal.Signals
) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        assert await chat(daemon, "a") == 200
        hurt = helpers(daemon, "specd.prompt")
        for process in hurt:
            process.send_signal(number)
        assert hurt
        assert await asyncio.gather(*(chat(daemon, "b") for _ in range(6))) == [200] * 6
        assert await ended(hurt)


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM], ids=lambda number: number.name
)
async def test_template_processes_that_are_killed_repeatedly_give_a_server_error(
    tmp_path: Path, number: signal.Signals
) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("m", weights=write_llama(tmp_path / "m.gguf", chat_template=SLOW))
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        assert await chat(daemon, "a") == 200
        body = {"model": "m", "messages": [{"role": "user", "content": "b"}], "stream": False}
        asked = asyncio.ensure_future(daemon.http.post("/api/chat", json=body).__aenter__())
        while not asked.done():
            for process in helpers(daemon, "specd.prompt"):
                process.send_signal(number)
            await asyncio.wait([asked], timeout=0.02)
        reply = await asked
        assert reply.status == 500
        error = (await reply.json())["error"]
        assert error.startswith("chat template: the server's worker process for this request")
        assert f"ended by {number.name}" in error
        assert await chat(daemon, "c") == 200


@pytest.mark.native
@pytest.mark.parametrize("number", SIGNALS)
async def test_a_killed_or_stopped_grammar_process_fails_no_request(
    tmp_path: Path, number: signal.Signals
) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))

    def schema(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}

    async with running(tmp_path) as daemon:
        assert await chat(daemon, "a", format=schema("first")) == 200
        hurt = helpers(daemon, "specd.engine.grammar.sandbox")
        for process in hurt:
            process.send_signal(number)
        assert hurt
        assert await chat(daemon, "b", format=schema("second")) == 200
        assert await ended(hurt)


@pytest.mark.parametrize(
    "number, words",
    [(signal.SIGKILL, "signal: SIGKILL"), (signal.SIGSTOP, "no progress for 2 s")],
    ids=["SIGKILL", "SIGSTOP"],
)
async def test_a_killed_or_stopped_quantization_is_an_error_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"echo $$ > {tmp_path / 'pid'}; kill -{number} $$; exec sleep 600"
    going = quantize(
        tmp_path / "a", tmp_path / "b", "Q8_0", command=("sh", "-c", script), stall_s=2.0
    )
    with pytest.raises(errors.EngineError, match=words):
        async for _ in going:
            pass
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text(encoding="ascii")))
    assert ("it was stopped by a signal" in caplog.text) == (number == signal.SIGSTOP)


@pytest.mark.contract("sched.load-failure")
async def test_an_engine_command_that_does_not_exist_gets_a_clear_error(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    async with running(tmp_path, engine=("/nonexistent/engine",)) as daemon:
        for _ in range(2):
            async with daemon.generate("a", stream=False) as response:
                assert response.status == 500
                error = (await response.json())["error"]
            assert error.startswith("cannot start the engine: [Errno 2]")
        async with daemon.http.get("/api/ps") as response:
            assert (await response.json())["models"] == []


@pytest.mark.parametrize(
    "refusal",
    [
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("can't start new thread"),
    ],
    ids=["EAGAIN", "ENOMEM", "no thread"],
)
async def test_a_machine_that_can_start_no_process_fails_only_the_load(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise refusal

    n_files = psutil.Process().num_fds()
    with monkeypatch.context() as full:
        full.setattr(asyncio, "create_subprocess_exec", refuse)
        process = Process(core.EngineSpec(weights="w"))
        with pytest.raises(errors.LoadFailed, match="cannot start the engine"):
            await process.ready()
        await process.ended()
    await asyncio.sleep(0)  # transports are closed in the next turn of the loop
    assert psutil.Process().num_fds() == n_files
