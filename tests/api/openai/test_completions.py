"""`/v1/completions`: the requests to the generation, and the answers."""

from __future__ import annotations

import pytest

from specd import core, errors
from tests.api.fakes import DONE, FakeGeneration, Script, model_ref
from tests.api.openai.asking import ask, stream_of

PATH = "/v1/completions"
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}
STRUCT = "json: cannot unmarshal {} into Go struct field CompletionRequest"
NOTHING_YET = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def body(**fields: object) -> dict[str, object]:
    return {"model": "able", "prompt": "x"} | fields


async def asked(**fields: object) -> core.GenerateRequest:
    generation = FakeGeneration()
    status, answer = await ask(generation, PATH, body(**fields))
    assert status == 200, answer
    return generation.requests[0]


@pytest.mark.contract("openai.completions")
async def test_an_answer_at_once() -> None:
    status, answer = await ask(FakeGeneration(), PATH, body(model="Able"))
    assert status == 200
    assert answer.pop("specd")["speculation"]["drafter"] == "tiny:latest"
    assert answer.pop("timings")["draft_n"] == 8
    assert answer == {
        "id": "cmpl-42",
        "object": "text_completion",
        "created": 1_785_585_600,
        "choices": [{"text": "Hello", "index": 0, "finish_reason": "stop"}],
        "model": "Able",
        "system_fingerprint": "fp_ollama",
        "usage": USAGE,
    }


@pytest.mark.contract("openai.completions-stream")
async def test_a_stream_ends_in_a_chunk_with_the_reason() -> None:
    *chunks, finish, end = await stream_of(FakeGeneration(), PATH, body())
    assert [chunk["choices"] for chunk in chunks] == [
        [{"text": "Hel", "index": 0, "finish_reason": None}],
        [{"text": "lo", "index": 0, "finish_reason": None}],
    ]
    assert finish["choices"] == [{"text": "", "index": 0, "finish_reason": "stop"}]
    assert finish["specd"]["speculation"]["state"] == "active"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert not any("usage" in chunk for chunk in [*chunks, finish])
    assert end == "[DONE]"


@pytest.mark.contract("openai.completions-stream")
async def test_with_usage_every_chunk_has_it_and_the_last_has_the_counts() -> None:
    sent = body(stream_options={"include_usage": True})
    *chunks, counts, end = await stream_of(FakeGeneration(), PATH, sent)
    assert [chunk["usage"] for chunk in chunks] == [NOTHING_YET] * 3
    assert (counts["choices"], counts["usage"], end) == ([], USAGE, "[DONE]")


@pytest.mark.contract("openai.completions")
async def test_thinking_is_separate_from_the_text() -> None:
    script: Script = [core.Delta(thinking="hm", content="a"), DONE]
    _, answer = await ask(FakeGeneration(script), PATH, body())
    assert answer["choices"][0] == {
        "text": "a",
        "index": 0,
        "finish_reason": "stop",
        "reasoning": "hm",
    }


@pytest.mark.contract("openai.completions")
async def test_log_probabilities_come_in_both_shapes() -> None:
    top = core.TopLogprob(token="b", bytes=(98,), logprob=-2.0)
    entry = core.TokenLogprob(token="a", bytes=(97,), logprob=-1.0, top=(top,))
    script: Script = [core.Delta(content="a", logprobs=(entry,)), DONE]
    _, answer = await ask(FakeGeneration(script), PATH, body(logprobs=1))
    wire_top = {"token": "b", "logprob": -2.0, "bytes": [98]}
    assert answer["choices"][0]["logprobs"] == {
        "content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [wire_top]}],
        "tokens": ["a"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"b": -2.0}],
    }


@pytest.mark.contract("openai.defaults", "openai.options")
async def test_options_are_those_of_ollamas_layer() -> None:
    assert await asked() == core.GenerateRequest(
        model=model_ref("able", "completion", "tools", "insert", "vision", "audio", "thinking"),
        prompt=core.TextPrompt(text="x"),
        options={
            "temperature": 1.0,
            "top_p": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
        },
    )
    request = await asked(
        suffix="after",
        max_tokens=5,
        seed=7,
        stop=["a", "b"],
        temperature=0,
        top_p=0.5,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logprobs=3,
        echo=True,
        best_of=4,
        n=2,
    )
    assert request.prompt == core.TextPrompt(text="x", suffix="after")
    assert request.n_logprobs == 3
    assert request.options == {
        "temperature": 0.0,
        "top_p": 0.5,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "num_predict": 5,
        "seed": 7,
        "stop": ("a", "b"),
    }


@pytest.mark.parametrize("sent", [0, -1])
async def test_logprobs_without_a_number_are_off(sent: int) -> None:
    assert (await asked(logprobs=sent)).n_logprobs is None


@pytest.mark.contract("openai.defaults", "openai.options")
async def test_a_top_p_of_nothing_is_one_and_a_bare_stop_is_a_list() -> None:
    options = (await asked(top_p=0, stop="end")).options
    assert (options["top_p"], options["stop"]) == (1.0, ("end",))


@pytest.mark.contract("openai.completions-refused")
async def test_a_list_of_one_prompt_is_a_prompt() -> None:
    assert (await asked(prompt=["only"])).prompt == core.TextPrompt(text="only")


async def test_an_empty_prompt_loads_the_model() -> None:
    generation = FakeGeneration()
    status, answer = await ask(generation, PATH, {"model": "able"})
    assert (status, generation.requests) == (200, [])
    assert generation.loads[0][0] == "able:latest"
    assert answer["choices"] == [{"text": "", "index": 0, "finish_reason": "stop"}]
    *_, finish, end = await stream_of(generation, PATH, {"model": "able"})
    assert (finish["choices"][0]["text"], end) == ("", "[DONE]")
    assert len(generation.loads) == 2


@pytest.mark.contract("openai.completions-refused")
@pytest.mark.parametrize(
    "fields,status,text",
    [
        ({"model": ""}, 404, "model '' not found"),
        ({"model": "no"}, 404, "model 'no' not found"),
        ({"model": "embedder"}, 400, '"embedder" does not support generate'),
        ({"model": "painter"}, 400, "image generation models are not currently supported"),
        (
            {"model": "plain", "suffix": "s"},
            400,
            "registry.ollama.ai/library/plain:latest does not support insert",
        ),
        ({"stop": ["a", 1]}, 400, "invalid type for 'stop' field: float64"),
        ({"logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        (
            {"prompt": ["a", "b"]},
            400,
            f"{STRUCT.format('array')}.prompt of type string",
        ),
        (
            {"temperature": "hot"},
            400,
            f"{STRUCT.format('string')}.temperature of type float32",
        ),
    ],
)
async def test_refusals(fields: dict[str, object], status: int, text: str) -> None:
    generation = FakeGeneration()
    got, answer = await ask(generation, PATH, body(**fields))
    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert (got, answer) == (
        status,
        {"error": {"message": text, "type": kind, "param": None, "code": None}},
    )
    assert not generation.requests


@pytest.mark.contract("openai.stream-error")
async def test_an_error_in_mid_stream_is_an_event() -> None:
    script: Script = [core.Delta(content="a"), errors.EngineCrashed("gone")]
    *_, last = await stream_of(FakeGeneration(script), PATH, body())
    assert last["error"]["message"] == "gone"
