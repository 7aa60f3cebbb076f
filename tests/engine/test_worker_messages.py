"""A worker sends the messages of a step together, from the loop's own thread."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from specd import core
from specd.engine.loop import Loop
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.cost_model import CostModel
from specd.ipc import codec
from specd.ipc.channel import Outbox
from specd.ipc.messages import Started, ToDaemon, Tokens
from specd.runner import Process
from tests.engine.test_loop import CHEAP, VOCABULARY, make_request
from tests.fakes.backend import FakeBackend
from tests.gguf_files import write_llama

N_SLOTS = 4
N_TOKENS = 200


def messages_in(data: bytes) -> list[ToDaemon]:
    found = []
    while data:
        end = codec.HEADER.size + codec.body_length(data[: codec.HEADER.size])
        found.append(codec.decode_to_daemon(data[codec.HEADER.size : end]))
        data = data[end:]
    return found


def test_messages_of_a_step_are_sent_together_before_the_next_pass() -> None:
    daemon, engine = socket.socketpair()
    with closing(daemon), closing(engine):
        outbox = Outbox(engine)
        arrived: list[list[ToDaemon]] = []

        class Target(FakeBackend):
            def decode(self, batch: object) -> None:
                # What is there now came while the last pass was judged, or before this one.
                try:
                    arrived.append(messages_in(daemon.recv(1 << 16, socket.MSG_DONTWAIT)))
                except BlockingIOError:
                    arrived.append([])
                super().decode(batch)  # type: ignore[arg-type]

        loop = Loop(
            Target(N_SLOTS, n_batch=64),
            VOCABULARY,
            Controller(CostModel(CHEAP, 0.01, 1e-6), 0.4),
            outbox.put,
            flush=outbox.flush,
            n_ctx=256,
            n_slots=N_SLOTS,
        )
        for request_id in range(N_SLOTS):
            loop.submit(request_id, make_request(n_draft_max=0))
        while loop.is_busy:
            loop.step()
        outbox.drain()
    first, second, *_ = arrived
    assert [type(message) for message in first] == [Started] * N_SLOTS
    assert {type(message) for message in second} == {Tokens}
    assert len(second) == N_SLOTS


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
async def test_a_plain_answer_wakes_no_other_thread_of_the_engine(tmp_path: Path) -> None:
    spec = core.EngineSpec(weights=str(write_llama(tmp_path / "m.gguf")), n_ctx=512, n_threads=1)
    process = Process(spec)
    try:
        await process.ready()
        before = others_woken(process.pid)
        request = core.EngineRequest(
            prompt=("hello",),
            sampling=core.SamplingParams(temperature=0.0),
            n_predict=N_TOKENS,
            n_draft_max=0,
        )
        events = [event async for event in process.client.generate(request)]
        woken = others_woken(process.pid) - before
    finally:
        process.stop()
        await process.ended()
    assert sum(isinstance(event, core.Token) for event in events) > N_TOKENS // 2
    # The reader takes the request, and may have to wait for its turn.
    assert woken < N_TOKENS // 10


def others_woken(pid: int | None) -> int:
    """Return how often threads other than the first have slept."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
