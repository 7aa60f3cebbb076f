"""A peer's server for real: what it answers, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

import specd.demo
from specd import core
from specd.bench import peer_build
from specd.bench.peer import PeerAnswer, PeerBinary, PeerServer, peer_server
from specd.errors import EngineCrashed, EngineError, LoadFailed
from specd.runner import Process
from tests.gguf_files import write_llama

DEMO = Path(specd.demo.__path__[0])
TARGET, DRAFTER = DEMO / "target.gguf", DEMO / "drafter.gguf"
PROMPTS = ("def fibonacci(n):\n", "class Stack:\n    def __init__(self", "import os\n\n\ndef main(")
small_server = partial(peer_server, target=TARGET, n_threads=1, n_ctx=512, n_gpu_layers=0)


def kinds() -> list[str]:
    """What there is to test with: the same build's server once `make peer` has run, the wheel's."""
    try:
        built = peer_build.server_path().is_file()
    except peer_build.NoLibraries:
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


async def ask(server: PeerServer, prompt: str, n_tokens: int = 24) -> PeerAnswer:
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
        events = [event async for event in engine.generate(asked)]
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
    # Other kernels round differently, and a near tie may fall the other way.
    assert sum(a[:20] == b[:20] for a, b in zip(theirs, ours, strict=True)) >= 2
    for answer in answers:
        assert 1 < answer.n_generated <= 24
        assert answer.n_timed == answer.n_generated - 1
        assert answer.generate_ns > 0
        assert answer.tokens_per_s == 1e9 * answer.n_timed / answer.generate_ns
        assert (answer.n_drafted, answer.n_accepted) == (0, 0)
        assert 0 <= answer.n_cached < answer.n_prompt


async def test_with_a_drafter_it_drafts_and_says_the_same(binary: PeerBinary) -> None:
    async with small_server(binary) as server:
        plain = await ask(server, PROMPTS[0])
    async with small_server(binary, drafter=DRAFTER, n_draft_max=3) as server:
        drafted = await ask(server, PROMPTS[0])
    assert 0 < drafted.n_accepted <= drafted.n_drafted
    # Rounds draft three at most, and every round brings one token of its own.
    n_rounds = drafted.n_generated - 1 - drafted.n_accepted
    assert drafted.n_drafted <= 3 * n_rounds
    if binary.same_build:
        assert drafted.text == plain.text


async def test_as_many_answers_at_once_as_there_are_slots(binary: PeerBinary) -> None:
    async with small_server(binary, n_slots=2) as server:
        answers = await asyncio.gather(*(ask(server, prompt, 8) for prompt in PROMPTS))
    assert [answer.n_generated for answer in answers] == [8, 8, 8]


async def test_a_file_that_is_not_there_is_named(binary: PeerBinary, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"llama-server did not start: .*missing\.gguf"):
        async with small_server(binary, target=tmp_path / "missing.gguf"):
            raise AssertionError("a server without a model")


async def test_a_drafter_of_another_vocabulary_is_no_silent_plain_decoding(
    binary: PeerBinary, tmp_path: Path
) -> None:
    stranger = write_llama(tmp_path / "stranger.gguf")
    with pytest.raises(LoadFailed, match=r"drafts nothing: .*vocab"):
        async with small_server(binary, drafter=stranger, n_draft_max=3):
            raise AssertionError("a server that would decode plainly")


async def test_an_unsure_drafter_may_stop_before_its_first_token(binary: PeerBinary) -> None:
    async with small_server(binary, drafter=DRAFTER, n_draft_max=3) as server:
        bold = await ask(server, PROMPTS[0])
    async with small_server(binary, drafter=DRAFTER, n_draft_max=3, p_min=0.5) as server:
        careful = await ask(server, PROMPTS[0])
    async with small_server(binary, drafter=DRAFTER, n_draft_max=3, p_min=1.0) as server:
        silent = await ask(server, PROMPTS[0])
    assert bold.n_drafted > careful.n_drafted > silent.n_drafted
    assert silent.n_generated == careful.n_generated == bold.n_generated


async def test_a_prompt_longer_than_the_context_is_refused_in_the_servers_words(
    binary: PeerBinary,
) -> None:
    async with small_server(binary) as server:
        with pytest.raises(EngineError, match=r"refuses \(400\): .*exceeds"):
            await ask(server, PROMPTS[0] * 200)
        assert (await ask(server, PROMPTS[0], 2)).n_generated == 2


async def test_a_killed_server_is_said_to_have_ended(binary: PeerBinary) -> None:
    async with small_server(binary, n_slots=2) as server:
        endless = asyncio.create_task(ask(server, PROMPTS[0], 400))
        await ask(server, PROMPTS[1], 1)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineCrashed, match="llama-server has ended: signal SIGKILL"):
            await endless
        with pytest.raises(EngineCrashed):
            await ask(server, PROMPTS[0])


async def test_it_is_gone_when_the_block_is_left_by_an_error(binary: PeerBinary) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        async with small_server(binary) as server:
            raise RuntimeError("mine")
    assert not psutil.pid_exists(server.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_it_does_not_outlive_a_bench_that_is_killed() -> None:
    script = textwrap.dedent(
        f"""
        import asyncio
        from pathlib import Path
        from specd.bench.peer import PeerBinary, peer_server

        async def main():
            target = Path({str(TARGET)!r})
            async with peer_server(PeerBinary.find(), target=target, n_ctx=512) as server:
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
