"""Test requests with images and sounds on the whole daemon, with a real engine."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.daemon_process import Daemon, running
from tests.gguf_adapters import write_lora
from tests.gguf_files import OllamaStore, Shape, write_llama
from tests.gguf_projectors import picture, sound, write_llava, write_ultravox

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = {"temperature": 0, "num_predict": 16, "num_ctx": 256, "seed": 1}
N_IMAGE = 16


def encoded(seed: int, kind: str = "PNG") -> str:
    return base64.b64encode(picture(seed, kind=kind)).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    tmp_path = tmp_path_factory.mktemp("vision")
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "text.gguf", shape=Shape(n_ctx=4096))
    store.add("m", weights=weights, projector=write_llava(tmp_path / "mmproj.gguf"))
    store.add("blind", weights=weights)
    store.add("ear", weights=weights, projector=write_ultravox(tmp_path / "ear.gguf"))
    async with running(tmp_path, OLLAMA_NUM_PARALLEL="2") as started:
        yield started


async def post(daemon: Daemon, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    async with daemon.http.post(path, json={"model": "m", "stream": False, **body}) as reply:
        return reply.status, await reply.json()


async def generate(daemon: Daemon, *images: str, **body: Any) -> dict[str, Any]:
    status, answer = await post(
        daemon,
        "/api/generate",
        **{"prompt": "see", "raw": True, "images": images, "options": OPTIONS, **body},
    )
    assert status == 200, answer
    return answer


async def test_a_model_with_a_projector_has_the_vision_capability(daemon: Daemon) -> None:
    status, shown = await post(daemon, "/api/show")
    assert (status, "vision" in shown["capabilities"]) == (200, True)
    assert shown["projector_info"]["general.architecture"] == "clip"
    _, blind = await post(daemon, "/api/show", model="blind")
    assert {"vision", "audio"}.isdisjoint(blind["capabilities"])


@pytest.mark.contract("show.capabilities")
async def test_a_model_with_an_audio_projector_has_the_audio_capability(daemon: Daemon) -> None:
    _, ear = await post(daemon, "/api/show", model="ear")
    assert "audio" in ear["capabilities"]
    _, eye = await post(daemon, "/api/show")
    assert "audio" not in eye["capabilities"]
    async with daemon.http.get("/api/tags") as reply:
        listed = {model["name"]: model["capabilities"] for model in (await reply.json())["models"]}
    assert "audio" in listed["ear:latest"]


@pytest.mark.contract("images.served")
async def test_an_image_changes_the_answer_and_its_tokens_are_counted(
    daemon: Daemon,
) -> None:
    none, one = await generate(daemon), await generate(daemon, encoded(1))
    other, both = await generate(daemon, encoded(2)), await generate(daemon, encoded(1), encoded(2))
    assert len({answer["response"] for answer in (none, one, other, both)}) == 4
    counts = [answer["prompt_eval_count"] for answer in (none, one, both)]
    assert counts == [counts[0], counts[0] + N_IMAGE, counts[0] + 2 * N_IMAGE]
    assert (await generate(daemon, encoded(1)))["response"] == one["response"]
    assert (await generate(daemon, encoded(1, "WEBP")))["response"] == one["response"]
    plain = await generate(daemon, encoded(1), options=OPTIONS | {"draft_num_predict": 0})
    assert plain["response"] == one["response"]


@pytest.mark.contract("images.placed")
async def test_an_image_is_inserted_at_its_tag(daemon: Daemon) -> None:
    one, two = encoded(1), encoded(2)
    front = await generate(daemon, one, two)
    placed = await generate(daemon, one, two, prompt="[img][img]see")
    swapped = await generate(daemon, one, two, prompt="[img-1][img-0]see")
    behind = await generate(daemon, one, two, prompt="[img]see[img]")
    counts = {answer["prompt_eval_count"] for answer in (front, placed, swapped, behind)}
    assert len(counts) == 1
    assert placed["response"] == front["response"]
    assert swapped["response"] == (await generate(daemon, two, one))["response"]
    assert len({answer["response"] for answer in (front, swapped, behind)}) == 3


@pytest.mark.contract("audio.served")
async def test_a_sound_changes_the_answer(daemon: Daemon) -> None:
    sounds = [base64.b64encode(sound(seed)).decode() for seed in (1, 2)]
    one, other = [await generate(daemon, file, model="ear") for file in sounds]
    assert one["response"] != other["response"]
    assert one["prompt_eval_count"] > 30


async def test_a_chat_and_its_next_turn(daemon: Daemon) -> None:
    asked = [{"role": "user", "content": "what is it?", "images": [encoded(1)]}]
    _, first = await post(daemon, "/api/chat", messages=asked, options=OPTIONS)
    turns = [*asked, first["message"], {"role": "user", "content": "and now?"}]
    status, second = await post(daemon, "/api/chat", messages=turns, options=OPTIONS)
    assert status == 200
    assert second["prompt_eval_count"] > first["prompt_eval_count"] > N_IMAGE
    other = [asked[0] | {"images": [encoded(2)]}]
    _, answer = await post(daemon, "/api/chat", messages=other, options=OPTIONS)
    assert answer["message"]["content"] != first["message"]["content"]


async def test_the_other_dialects_give_the_same_answer(daemon: Daemon) -> None:
    asked = [{"role": "user", "content": "see"}, {"role": "user", "images": [encoded(1)]}]
    settings = {"temperature": 0, "seed": 1}
    _, native = await post(daemon, "/api/chat", messages=asked, options=OPTIONS)
    url = {"url": f"data:image/png;base64,{encoded(1)}"}
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": url}]
    status, openai = await post(
        daemon,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": parts}],
        max_tokens=16,
        **settings,
    )
    assert status == 200, openai
    assert openai["choices"][0]["message"]["content"] == native["message"]["content"]
    assert openai["usage"]["prompt_tokens"] == native["prompt_eval_count"]
    source = {"type": "base64", "media_type": "image/png", "data": encoded(1)}
    status, anthropic = await post(
        daemon,
        "/v1/messages",
        messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],
        max_tokens=4,
        **settings,
    )
    assert status == 200, anthropic
    assert anthropic["usage"]["input_tokens"] > N_IMAGE


async def test_concurrent_requests_get_the_same_answers_as_sequential_ones(daemon: Daemon) -> None:
    alone = [(await generate(daemon, encoded(seed)))["response"] for seed in range(4)]
    together = await asyncio.gather(*(generate(daemon, encoded(seed)) for seed in range(4)))
    assert [answer["response"] for answer in together] == alone


@pytest.mark.parametrize(
    "image, words",
    [(b"hello", "an image cannot be read"), (b"RIFF\0\0\0\0WAVEfmt ", "does not support audio")],
)
async def test_an_invalid_image_is_400_and_the_next_request_is_answered(
    daemon: Daemon, image: bytes, words: str
) -> None:
    bad = base64.b64encode(image).decode()
    turn = {"role": "user", "content": "see", "images": [bad]}
    status, answer = await post(daemon, "/api/chat", messages=[turn], options=OPTIONS)
    assert status == 400
    assert words in answer["error"]
    engines = daemon.engines()
    await generate(daemon, encoded(1))
    assert daemon.engines() == engines


async def test_a_model_without_a_projector_is_not_loaded_for_an_image(daemon: Daemon) -> None:
    engines = daemon.engines()
    asked = {"model": "blind", "prompt": "see", "images": [encoded(1)]}
    status, answer = await post(daemon, "/api/generate", **asked)
    assert status == 400
    assert "does not support multimodal requests" in answer["error"]
    assert daemon.engines() == engines


@pytest.mark.contract("render-only")
@pytest.mark.parametrize("model", ["m", "blind"])
async def test_a_prompt_with_images_is_rendered_for_any_model(daemon: Daemon, model: str) -> None:
    engines = daemon.engines()
    only = {"model": model, "_debug_render_only": True}
    images = [encoded(1), encoded(2)]
    _, generated = await post(daemon, "/api/generate", prompt="see [img]", images=images, **only)
    assert generated["_debug_info"]["image_count"] == 2
    assert "[img-1]see [img-0]" in generated["_debug_info"]["rendered_template"]
    turns = [{"role": "user", "content": "see", "images": images[:1]} for _ in range(3)]
    _, chat = await post(daemon, "/api/chat", messages=turns, **only)
    assert chat["_debug_info"]["image_count"] == 3
    assert "[img-2]see" in chat["_debug_info"]["rendered_template"]
    url = {"url": f"data:image/png;base64,{images[0]}"}
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]
    _, openai = await post(daemon, "/v1/chat/completions", messages=parts, **only)
    assert openai["_debug_info"]["image_count"] == 1
    assert daemon.engines() == engines


@pytest.mark.contract("truncate.chat")
async def test_more_images_than_the_context_holds(daemon: Daemon) -> None:
    """Old turns are removed with their images; a single turn that is too long is an error."""
    turns = [
        {"role": "user", "content": "see", "images": [encoded(seed) for seed in range(20)]}
        for _ in range(10)
    ]
    options = OPTIONS | {"num_ctx": 2048}
    status, answer = await post(daemon, "/api/chat", messages=turns, options=options)
    assert status == 200
    assert 20 * N_IMAGE < answer["prompt_eval_count"] <= 2048
    turns[-1]["images"] = [encoded(0)] * 130
    status, answer = await post(daemon, "/api/chat", messages=turns[-3:], options=options)
    assert status == 400
    assert "context" in answer["error"]


async def test_an_adapter_of_the_manifest_changes_the_answer(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "text.gguf")
    store.add("m", weights=weights)
    store.add("tuned", weights=weights, adapter=write_lora(tmp_path / "lora.gguf", weights))
    async with running(tmp_path) as daemon:
        bare = await generate(daemon)
        tuned = await generate(daemon, model="tuned")
        assert tuned["response"] != bare["response"]
        assert (await generate(daemon))["response"] == bare["response"]
