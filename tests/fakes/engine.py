"""An engine process without a model: `python -m tests.fakes.engine --fd N`, for faults and speed.

The weights' file name and the prompt's first word select a fault.  Every other request is
answered with the prompt's own words, one token each; the word `w3` has the token id 3.
The answer to the prompt `drip` never ends: it sends one word for each later message.

Asked for `devices`, it offers the JSON list of FAKE_DEVICES, or none; other words there make it
hang, keep silent or fail half-way.

It reports the number of answered requests as its pair's history, and marks a Shutdown there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from specd import core
from specd.ipc import messages
from specd.ipc.channel import EngineChannel
from specd.ipc.parent_death import die_with_parent
from tests.fakes.engine_faults import Script

N_FLOOD = 200_000
N_SLOW = 20
BYE = "shut down"


class Lessons:
    """The learned history: the one that it was given, and what was added since."""

    def __init__(self, history: core.PairHistory | None) -> None:
        bands = history.bands if history is not None else ()
        self._band = bands[0] if bands else core.BandHistory(drafter="lookup", band=0)

    def add(self, channel: EngineChannel, n_requests: int = 0, parked: str = "") -> None:
        self._band = dataclasses.replace(
            self._band, n_requests=self._band.n_requests + n_requests, parked=parked
        )
        channel.send(messages.PairHistoryUpdate(core.PairHistory(bands=(self._band,))))


def load(channel: EngineChannel, spec: core.EngineSpec, script: Script) -> None:
    fault = Path(spec.weights).stem
    channel.send(messages.LoadProgress(0.5))
    script.loads(spec.weights)
    script.prompted(f"!{fault.removesuffix('-in-load')}")
    script.at("load")
    if fault == "crash-in-load":
        sys.stderr.write("GGML_ASSERT(tensor) failed\n")
        sys.stderr.flush()
        os._exit(3)
    if fault == "refuse":
        channel.send(messages.LoadRefused(f"{spec.weights}: not a GGUF file"))
        return
    if fault == "die-of-memory":
        sys.stderr.write("terminate called after throwing 'std::bad_alloc'\n")
        sys.stderr.flush()
        os._exit(3)
    if out_of_memory():
        channel.send(messages.LoadRefused(f"{spec.weights}: out of memory", out_of_memory=True))
        return
    if fault == "stall":
        return
    if fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    memory = core.ModelMemory(device="CPU", total_bytes=1000, vram_bytes=0)
    channel.send(
        messages.Loaded(
            core.EngineFacts(n_ctx=spec.n_ctx, n_ctx_train=2048, n_vocab=1000, target=memory)
        )
    )


def out_of_memory() -> bool:
    """Return True once for each time that a test creates the file FAKE_OUT_OF_MEMORY."""
    try:
        Path(os.environ["FAKE_OUT_OF_MEMORY"]).unlink()
    except (KeyError, FileNotFoundError):
        return False
    return True


def answer(
    channel: EngineChannel, request_id: int, request: core.EngineRequest, script: Script
) -> None:
    words = " ".join(str(piece) for piece in request.prompt).split()
    fault = words[0] if words else ""

    script.prompted(fault)
    script.at("prefill")

    def say(text: str) -> None:
        channel.send(messages.Tokens(request_id, core.Token(text=text)))

    def finish(event: core.Done | core.Failed) -> None:
        channel.send(messages.Finished(request_id, event))

    if fault in {"drip", "slow"}:
        return
    if fault in {"crash", "hang"}:
        say("last words")
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    if fault == "flood":
        for _ in range(N_FLOOD):
            say("x")
        return
    if fault in set(core.FailureKind):
        finish(core.Failed(kind=core.FailureKind(fault), message="why", n_prompt=9, n_ctx=8))
        return
    for word in words:
        say(word + " ")
        script.at("decode")
    finish(done(len(words)))


def done(n_words: int) -> core.Done:
    usage = core.Usage(n_prompt=n_words, n_generated=n_words, generate_ns=1)
    stats = core.SpeculationStats()
    return core.Done(reason=core.StopReason.STOP, usage=usage, speculation=stats)


def drip(channel: EngineChannel, requests: set[int]) -> None:
    for request_id in requests:
        channel.send(messages.Tokens(request_id, core.Token(text="drop ")))


def embed(channel: EngineChannel, request: messages.Embed) -> None:
    """Send the text's length as its vector and its number of words as its tokens."""
    words = request.text.split()
    fault = words[0] if words else ""
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        return
    if fault in set(core.FailureKind):
        failed = core.Failed(kind=core.FailureKind(fault), message="why", n_prompt=9, n_ctx=8)
        channel.send(messages.Finished(request.request_id, failed))
        return
    embedding = core.Embedding(vector=(float(len(request.text)),), n_tokens=len(words))
    channel.send(messages.Embedded(request.request_id, embedding))


def tokenized(request_id: int, text: str, cancelled: list[int]) -> messages.ToDaemon:
    """Return the ids of the text's words, or the answer to one of two test questions."""
    if text == "refused?":
        refusal = core.Failed(kind=core.FailureKind.INVALID, message="no image")
        return messages.Finished(request_id, refusal)
    if text == "cancelled?":
        return messages.Tokenized(request_id, cancelled)
    tokens = [int(word[1:]) if word[1:].isdigit() else 0 for word in text.split()]
    return messages.Tokenized(request_id, tokens)


def offer_devices(said: str) -> None:
    """Print the devices as an engine does, among its libraries' own output."""
    sys.stdout.write("ggml: found what there is\n")
    if said == "hang":
        signal.pause()
    if said == "silence":
        return
    if said == "old driver":
        sys.stderr.write("failed to initialize CUDA: the driver is too old\n")
        said = "[]"
    if said.startswith("full "):  # a GPU that cannot be opened: the names come first
        said = said.removeprefix("full ")
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        sys.stderr.write("CUDA error: out of memory\n")
        os._exit(3)
    sys.stdout.write(f"[]\n{said}\n")


class Heartbeat:
    """Counts a message or an action as a step: a slow answer takes `N_SLOW` pings."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._n_steps = self._n_left = self._slow = 0

    def next_message(self) -> Iterator[messages.ToEngine]:
        """Return the daemon's next message other than a ping; answer pings."""
        while (message := self._channel.receive()) is not None:
            if isinstance(message, messages.Ping):
                self._tell()
                continue
            self._n_steps += 1
            if isinstance(message, messages.Submit) and message.request.prompt == ("slow",):
                self._slow, self._n_left = message.request_id, N_SLOW
            yield message

    def _tell(self) -> None:
        if self._n_left:
            self._n_steps += 1
            self._n_left -= 1
            if not self._n_left:
                self._channel.send(messages.Finished(self._slow, done(0)))
        self._channel.send(messages.Pong(self._n_steps))


def answers_question(arguments: Sequence[str]) -> bool:
    """Answer `devices`, or `simulate` as if llama.cpp could load no model; return whether asked."""
    if arguments == ["devices"]:
        die_with_parent()
        offer_devices(os.environ.get("FAKE_DEVICES", "[]"))
    if arguments == ["simulate"]:
        n_loads = sys.stdin.read().count('"is_drafter"')
        sys.stdout.write("null\n" * n_loads)
    return arguments in (["devices"], ["simulate"])


def main() -> None:
    if answers_question(sys.argv[1:]):
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    die_with_parent()
    fd = parser.parse_args().fd
    channel, script = EngineChannel(socket.socket(fileno=fd)), Script(fd)
    deaf, cancelled, lessons = False, [], Lessons(None)
    dripping: set[int] = set()
    for message in Heartbeat(channel).next_message():
        drip(channel, dripping)
        match message:
            case messages.Load(spec, history):
                deaf, lessons = Path(spec.weights).stem == "deaf", Lessons(history)
                load(channel, spec, script)
            case messages.Submit(request_id, request):
                dripping |= {request_id} if request.prompt == ("drip",) else set()
                answer(channel, request_id, request, script)
                lessons.add(channel, n_requests=1)
            case messages.Embed():
                embed(channel, message)
            case messages.Cancel(request_id):
                cancelled.append(request_id)
                dripping.discard(request_id)
            case messages.Tokenize(request_id, (str(text),), _) if text != "hang":
                channel.send(tokenized(request_id, text, cancelled))
            case messages.Shutdown() if not deaf:
                lessons.add(channel, parked=BYE)
                break
            case messages.Shutdown():
                signal.pause()


if __name__ == "__main__":
    main()
