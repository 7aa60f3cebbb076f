"""Frames: a round trip keeps every message, and damage is an error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specd import core
from specd.ipc import codec, messages

SPEC = core.EngineSpec(weights="/m/target.gguf", drafter="/m/drafter.gguf", n_slots=3)
FACTS = core.EngineFacts(
    n_ctx=512,
    n_ctx_train=2048,
    n_vocab=99,
    target=core.ModelMemory(device="CPU", total_bytes=7, vram_bytes=0),
)
REQUEST = core.EngineRequest(
    prompt=(1, "text", 2),
    sampling=core.SamplingParams(seed=3),
    stop=("\n",),
    grammar=core.Grammar(kind=core.GrammarKind.JSON_SCHEMA, text="{}"),
    n_logprobs=0,
)
LOGPROB = core.TokenLogprob(
    token="é",
    bytes=(195, 169),
    logprob=-0.5,
    top=(core.TopLogprob(token="e", bytes=(101,), logprob=-1.0),),
)
DONE = core.Done(
    reason=core.StopReason.LENGTH,
    usage=core.Usage(n_prompt=4),
    speculation=core.SpeculationStats(
        state=core.SpeculationState.PARKED, speedup=1.5, threshold=0.3
    ),
    context=(1, 2),
)
FAILED = core.Failed(kind=core.FailureKind.CONTEXT_LENGTH, message="too long", n_prompt=9, n_ctx=8)
HISTORY = core.PairHistory(
    bands=(
        core.BandHistory(drafter="lookup", band=0),
        core.BandHistory(
            drafter="model",
            band=2,
            by_confidence=((0.5, 4.0), (0.9, 100.0)),
            by_depth=((0.75, 8.0),),
            parked="does_not_pay",
            gain=1.25,
            n_requests=3,
            n_drafted=40,
            n_accepted=30,
        ),
    ),
    device="CPU",
    target_s=((1, 0.01), (4, 0.02)),
)


def body(frame: bytes) -> bytes:
    head = codec.HEADER.size
    assert codec.body_length(frame[:head]) == len(frame) - head
    return frame[head:]


@pytest.mark.parametrize(
    "message",
    [
        messages.Load(SPEC),
        messages.Load(SPEC, HISTORY),
        messages.Submit(7, REQUEST),
        messages.Embed(8, "text", truncate=False, n_ctx=64),
        messages.Cancel(7),
        messages.Tokenize(8, ("text", core.Image(b"\x89PNG")), add_bos=True),
        messages.Detokenize(8, (1, 2, 3)),
        messages.Ping(),
        messages.Shutdown(),
    ],
)
def test_messages_to_the_engine_survive_a_round_trip(message: messages.ToEngine) -> None:
    assert codec.decode_to_engine(body(codec.encode(message))) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.LoadProgress(0.25),
        messages.Loaded(FACTS),
        messages.LoadRefused("why"),
        messages.LoadRefused("why", out_of_memory=True),
        messages.Started(7, 50, 20),
        messages.Tokens(7, core.Token(text="é", n_tokens=2, logprobs=(LOGPROB,))),
        messages.Finished(7, DONE),
        messages.Finished(7, FAILED),
        messages.Tokenized(8, [1, 2, 3]),
        messages.Detokenized(8, "text"),
        messages.Embedded(8, core.Embedding(vector=(0.5, -1.0, float("inf")), n_tokens=3)),
        messages.PairHistoryUpdate(HISTORY),
        messages.Pong(3),
    ],
)
def test_messages_to_the_daemon_survive_a_round_trip(message: messages.ToDaemon) -> None:
    assert codec.decode_to_daemon(body(codec.encode(message))) == message


@given(st.binary(max_size=64))
@example(b"\x91\xa4\x00\x00\x00\x80")  # text that is no UTF-8
def test_any_bytes_decode_to_a_message_or_to_bad_frame(data: bytes) -> None:
    for decode in (codec.decode_to_engine, codec.decode_to_daemon):
        with contextlib.suppress(codec.BadFrame):
            decode(data)


def test_a_finished_without_an_event_is_a_bad_frame() -> None:
    with pytest.raises(codec.BadFrame):
        codec.decode_to_daemon(b"\x94\xa8Finished\x07\xc0\xc0")


def test_a_header_above_the_limit_is_a_bad_frame() -> None:
    with pytest.raises(codec.BadFrame):
        codec.body_length(codec.HEADER.pack(codec.MAX_FRAME_BYTES + 1))


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(codec.BadFrame):
        codec.encode(messages.LoadRefused("x" * (codec.MAX_FRAME_BYTES + 1)))
