"""Test a real peer server: its answers, and that it leaves no process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

import specd.demo
from specd import core
from specd.bench import peer_binary
from specd.bench.peer import PeerBinary, PeerLoad, PeerServer, peer_server
from specd.bench.runs import Answer
from specd.errors import EngineCrashed, EngineError, LoadFailed
from specd.runner import Process
from tests.gguf_files import write_llama

DEMO = Path(specd.demo.__path__[0])
TARGET, DRAFTER = DEMO / "target.gguf", DEMO / "drafter.gguf"
PROMPTS = ("def fibonacci(n):\n", "class Stack:\n    def __init__(self", "import os\n\n\ndef main(")
SMALL = PeerLoad(target=str(TARGET), n_threads=1, n_ctx=512, n_gpu_layers=0)


def small_server(binary: PeerBinary, **changes: Any) -> AbstractAsyncContextManager[PeerServer]:
    return peer_server(binary, replace(SMALL, **changes))


def kinds() -> list[str]:
    """Return the available servers: of the same build (after `make peer`), of the wheel."""
    try:
        built = peer_binary.server_path().is_file()
    except peer_binary.NoLibraries:
        built = False
    return ["same build"] * built + ["wheel"] * (find_spec("xllamacpp") is not None)


pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not kinds(), reason="no llama-server: neither `make peer` nor xllamacpp"),
]


@pytest.fixture(params=kinds() or ["none"])
def binary(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PeerBinary:
    if request.param == "wheel":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing was built
    return PeerBinary.find()


async def ask(server: PeerServer, prompt: str, n_tokens: int = 24) -> Answer:
    return await server.answer(prompt, n_tokens=n_tokens, temperature=0.0, seed=1)


async def engines_text(prompt: str, n_tokens: int) -> str:
    spec = core.EngineSpec(weights=str(TARGET), n_threads=1, n_ctx=512, n_gpu_layers=0)
    asked = core.EngineRequest(
        prompt=(prompt,),
        sampling=core.SamplingParams(temperature=0.0),
        n_predict=n_tokens,
        n_draft_max=0,
    )
    engine = Process(spec)
    try:
        await engine.ready()
        events = [event async for event in engine.client.generate(asked)]
    finally:
        engine.stop()
        await engine.ended()
    return "".join(event.text for event in events if isinstance(event, core.Token))


async def test_a_plain_answer_at_temperature_zero_is_the_engines(binary: PeerBinary) -> None:
    ours = [await engines_text(prompt, 24) for prompt in PROMPTS]
    async with small_server(binary) as server:
        answers = [await ask(server, prompt) for prompt in PROMPTS]
    theirs = [answer.text for answer in answers]
    if binary.same_build:
        assert theirs == ours
    # Other kernels round differently, so a near tie may give another token.
    assert sum(a[:20] == b[:20] for a, b in zip(theirs, ours, strict=True)) >= 2
    for answer in answers:
        assert 1 < answer.usage.n_generated <= 24
        assert answer.usage.generate_ns > 0
        assert (answer.speculation.draft_n, answer.speculation.draft_n_accepted) == (0, 0)
        assert 0 <= answer.usage.n_cached < answer.usage.n_prompt


async def test_a_server_with_a_drafter_drafts_and_gives_the_same_text(binary: PeerBinary) -> None:
    async with small_server(binary) as server:
        plain = await ask(server, PROMPTS[0])
    async with small_server(binary, drafter=str(DRAFTER), n_draft_max=3) as server:
        drafted = await ask(server, PROMPTS[0])
    counts = drafted.speculation
    assert 0 < counts.draft_n_accepted <= counts.draft_n
    # A round drafts at most three tokens and adds one of its own.
    n_rounds = drafted.usage.n_generated - 1 - counts.draft_n_accepted
    assert counts.draft_n <= 3 * n_rounds
    if binary.same_build:
        assert drafted.text == plain.text


async def test_more_requests_than_slots_are_all_answered(binary: PeerBinary) -> None:
    async with small_server(binary, n_slots=2) as server:
        answers = await asyncio.gather(*(ask(server, prompt, 8) for prompt in PROMPTS))
    assert [answer.usage.n_generated for answer in answers] == [8, 8, 8]


async def test_a_missing_file_is_named_in_the_error(binary: PeerBinary, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"llama-server did not start: .*missing\.gguf"):
        async with small_server(binary, target=str(tmp_path / "missing.gguf")):
            raise AssertionError("a server without a model")


async def test_a_drafter_with_another_vocabulary_fails_to_load(
    binary: PeerBinary, tmp_path: Path
) -> None:
    stranger = write_llama(tmp_path / "stranger.gguf")
    with pytest.raises(LoadFailed, match=r"drafts nothing: .*vocab"):
        async with small_server(binary, drafter=str(stranger), n_draft_max=3):
            raise AssertionError("a server that would decode plainly")


async def test_a_prompt_longer_than_the_context_is_refused_with_the_servers_message(
    binary: PeerBinary,
) -> None:
    async with small_server(binary) as server:
        with pytest.raises(EngineError, match=r"refuses \(400\): .*exceeds"):
            await ask(server, PROMPTS[0] * 200)
        assert (await ask(server, PROMPTS[0], 2)).usage.n_generated == 2


async def test_a_killed_server_is_reported_as_ended(binary: PeerBinary) -> None:
    async with small_server(binary, n_slots=2) as server:
        endless = asyncio.create_task(ask(server, PROMPTS[0], 400))
        await ask(server, PROMPTS[1], 1)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineCrashed, match="llama-server has ended: signal SIGKILL"):
            await endless
        with pytest.raises(EngineCrashed):
            await ask(server, PROMPTS[0])


async def test_an_error_in_the_block_ends_the_server(binary: PeerBinary) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        async with small_server(binary) as server:
            raise RuntimeError("mine")
    assert not psutil.pid_exists(server.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_the_server_dies_with_a_killed_bench() -> None:
    script = textwrap.dedent(
        f"""
        import asyncio
        from specd.bench.peer import PeerBinary, PeerLoad, peer_server

        async def main():
            load = PeerLoad(target={str(TARGET)!r}, n_ctx=512)
            async with peer_server(PeerBinary.find(), load) as server:
                print(server.pid, flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    bench = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with bench:
        assert bench.stdout is not None
        server = psutil.Process(int(bench.stdout.readline()))
        assert server.is_running()
        bench.kill()
    gone, alive = psutil.wait_procs([server], timeout=10)
    assert (gone, alive) == ([server], [])
