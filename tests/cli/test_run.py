"""`specd run`: prompts, chats, vectors and missing models."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.chat import answer_or_chat, chat
from specd.cli.run import _whole_prompt
from specd.cli.sync_client import DaemonRefused
from specd.errors import InvalidRequest
from tests.cli.conversation_helpers import FINAL, SHOWN, asked_of, conversation, daemon, typed
from tests.cli.fake_daemon import FakeDaemon


async def run(url: str, text: str, *, chats: bool = False, **fields: Any) -> tuple[str, str]:
    """Return the output and the notes."""
    talk, out, notes = conversation(url, **fields)
    await answer_or_chat(talk, text, {"dimensions": 2, "truncate": None}, chats=chats)
    return out.getvalue(), notes.getvalue()


async def test_an_answer_is_streamed_to_the_output() -> None:
    fake = daemon(generate=[{"response": "Hel"}, {"response": "lo [b] :smile:"}, FINAL])
    async with fake.serve() as url:
        out, notes = await run(url, "Hi", verbose=True)
    assert fake.asked == [
        ("/api/show", {"model": "m"}),
        ("/api/generate", {"model": "m", "options": {}, "prompt": "Hi"}),
    ]
    assert out == "Hello [b] :smile:\n"
    assert "drafting:             60 of 80 tokens accepted (75%)" in notes


async def test_options_are_sent_with_the_request() -> None:
    fields: dict[str, Any] = {
        "options": {"seed": 1},
        "format": "json",
        "think": "low",
        "keep_alive": "5m",
    }
    fake = daemon(generate=[FINAL])
    async with fake.serve() as url:
        await run(url, "Hi", **fields)
    assert asked_of(fake, "generate") == [{"model": "m", "prompt": "Hi", **fields}]


ENDLESS = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1}


@pytest.mark.parametrize(
    "shown,options,bound",
    [
        ({"model_info": ENDLESS}, {"seed": 1}, 2048),
        ({"model_info": ENDLESS}, {"num_predict": 5}, None),
        ({"model_info": ENDLESS, "parameters": "num_predict                    9"}, {}, None),
        ({"model_info": {**ENDLESS, "tokenizer.ggml.eos_token_id": 2}}, {}, None),
        ({"model_info": {**ENDLESS, "tokenizer.ggml.eot_token_id": 2}}, {}, None),
        ({"model_info": {}}, {}, None),
    ],
)
async def test_a_model_without_an_end_token_gets_a_token_limit(
    shown: dict[str, Any], options: dict[str, Any], bound: int | None
) -> None:
    final = {**FINAL, "done_reason": "length"}
    cut = {"message": {"content": "x"}, **final}
    fake = daemon(shown, generate=[final], chat=[cut])
    async with fake.serve() as url:
        _, notes = await run(url, "Hi", options=options)
        talk, _, chat_notes = conversation(url, options=options)
        async with talk.client:
            await talk.find()
            await chat(talk, typed("one", "/save mine"))
    asked = [*asked_of(fake, "generate")[:1], *asked_of(fake, "chat")]
    wanted = options if bound is None else {**options, "num_predict": bound}
    assert [body["options"] for body in asked] == [wanted, wanted]
    for said in (notes, chat_notes.getvalue()):
        assert ("no end token: its answer was ended after 2048 tokens" in said) == bool(bound)
    assert talk.options == options


@pytest.mark.parametrize("hides", [False, True])
async def test_thinking_is_marked_or_hidden(hides: bool) -> None:
    parts = [{"thinking": "Hm"}, {"thinking": "m."}, {"response": "Yes."}, FINAL]
    async with daemon(generate=parts).serve() as url:
        out, _ = await run(url, "Hi", is_thinking_hidden=hides)
    assert out == ("" if hides else "Thinking...\nHmm.\n...done thinking.\n\n") + "Yes.\n"


async def test_images_are_sent_to_a_vision_model(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"PNG")
    fake = daemon({"capabilities": ["completion", "vision"]}, generate=[FINAL])
    async with fake.serve() as url:
        _, notes = await run(url, f"What is {tmp_path}/a.png ?")
    [body] = asked_of(fake, "generate")
    assert (body["prompt"], body["images"]) == ("What is  ?", ["UE5H"])
    assert notes == f"Added '{tmp_path}/a.png'\n"


async def test_an_embedding_model_prints_a_vector() -> None:
    fake = daemon({"capabilities": ["embedding"]}, embed={"embeddings": [[0.5, -1]]})
    async with fake.serve() as url:
        out, _ = await run(url, "Hi", keep_alive="1m")
        with pytest.raises(InvalidRequest, match="needs a text"):
            await run(url, "", chats=True)
    body = {"model": "m", "input": "Hi", "options": {}, "dimensions": 2, "keep_alive": "1m"}
    assert asked_of(fake, "embed") == [body]
    assert out == "[0.5,-1]\n"


async def test_without_a_prompt_or_a_terminal_the_model_is_loaded() -> None:
    fake = daemon()
    async with fake.serve() as url:
        assert await run(url, "") == ("", "")
    assert asked_of(fake, "generate") == [{"model": "m", "options": {}, "stream": False}]


async def test_a_chat_sends_its_turns_until_it_is_cleared() -> None:
    fake = daemon()
    async with fake.serve() as url:
        talk, out, _ = conversation(url)
        async with talk.client:
            await chat(talk, typed("one", "", "two", "/clear", "three", "/bye", "never"))
    chats = [body["messages"] for body in asked_of(fake, "chat")]
    assert [[m["content"] for m in messages] for messages in chats] == [
        ["one"],
        ["one", "answer 1", "two"],
        ["three"],
    ]
    assert "answer 3" in out.getvalue()


async def test_messages_of_the_modelfile_are_printed_but_not_sent() -> None:
    turns = [
        {"role": "system", "content": "Hush"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
    ]
    fake = daemon({"messages": turns})
    async with fake.serve() as url:
        talk, out, _ = conversation(url)
        async with talk.client:
            await talk.find()
            await chat(talk, typed("one"))
    assert ">>> Hi\nHo\n\nanswer 1\n" in out.getvalue().replace("\n\n\n", "\n\n")
    assert "Hush" not in out.getvalue()
    assert asked_of(fake, "chat")[0]["messages"] == [{"role": "user", "content": "one"}]


async def test_a_refused_turn_is_reported_and_dropped() -> None:
    fake = FakeDaemon(
        {"/api/generate": {"done": True}, "/api/chat": {"error": "too long"}},
        status={"/api/chat": 400},
    )
    async with fake.serve() as url:
        talk, _, notes = conversation(url)
        async with talk.client:
            await chat(talk, typed("one"))
    assert notes.getvalue() == "Error: too long\n"
    assert talk.messages == []


class Missing(FakeDaemon):
    """A daemon that has no model until a pull."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api/show" and "/api/pull" not in [path for path, _ in self.asked]:
            self.asked.append((request.path, {}))
            return web.json_response({"error": "model 'm' not found"}, status=404)
        return await super().handle(request)


async def test_a_missing_model_is_pulled() -> None:
    fake = Missing(
        {
            "/api/show": SHOWN,
            "/api/generate": [{"response": "Hello"}, FINAL],
            "/api/pull": [{"status": "pulling manifest"}, {"status": "success"}],
        }
    )
    async with fake.serve() as url:
        talk, out, notes = conversation(url)
        await answer_or_chat(talk, "Hi", {}, chats=False, insecure=True)
    assert [path for path, _ in fake.asked] == [
        *("/api/show", "/api/pull", "/api/show", "/api/generate")
    ]
    assert asked_of(fake, "pull") == [{"model": "m", "insecure": True}]
    assert notes.getvalue().rstrip() == "pulling manifest\nsuccess"
    assert out.getvalue() == "Hello\n"


async def test_a_model_in_no_registry_is_an_error_before_the_chat() -> None:
    fake = FakeDaemon(
        {
            "/api/show": {"error": "model 'm' not found"},
            "/api/pull": [{"error": "pull model manifest: file does not exist"}],
        },
        status={"/api/show": 404},
    )
    async with fake.serve() as url:
        with pytest.raises(DaemonRefused, match="pull model manifest: file does not exist"):
            await run(url, "", chats=True)


def test_piped_text_precedes_the_prompt() -> None:
    assert _whole_prompt("a file\n", ["sum", "it"]) == "a file\n sum it"
    assert _whole_prompt("\n", ["Hi"]) == "Hi"
    assert _whole_prompt(" x\n", []) == " x\n"
    assert _whole_prompt("", []) == ""


@pytest.mark.parametrize(
    "arguments,sent",
    [
        (["--think", "m", "Hi", "there"], {"think": True}),
        (["m", "Hi there", "--think=false"], {"think": False}),
        (["m", "--think=high", "Hi there"], {"think": "high"}),
        (["m", "Hi there", "--format", "json"], {"format": "json"}),
        (["m", "Hi there", "--format", '{"type":"object"}'], {"format": {"type": "object"}}),
        (["m", "Hi there", "--no-draft", "--seed", "3"], {}),
        (["--nowordwrap", "--insecure", "--hidethinking", "m", "Hi there"], {}),
        (["m", "--", "Hi there"], {}),
    ],
)
def test_flags_work_as_in_ollama(
    arguments: list[str], sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(talk: Any, text: str) -> None:
        bodies.append(talk._fields() | {"prompt": text})

    async def find(talk: Any, *, insecure: bool) -> None:
        talk.shown = SHOWN

    monkeypatch.setattr("specd.cli.conversation.Conversation.answer", answer)
    monkeypatch.setattr("specd.cli.conversation.Conversation.find", find)
    result = CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    options = {"draft_num_predict": 0, "seed": 3} if "--seed" in arguments else {}
    assert bodies == [{"model": "m", "options": options, "prompt": "Hi there", **sent}]


@pytest.mark.parametrize(
    "arguments", [["--think=deep"], ["--format", "xml"], ["--format", "[]"], ["--truncate=maybe"]]
)
def test_invalid_flag_values_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["run", "m", "Hi", *arguments])
    assert isinstance(result.exception, InvalidRequest)
    assert arguments[0].partition("=")[0] in str(result.exception)


async def test_an_interrupted_answer_keeps_the_text_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon that sends Ctrl-C with the first words."""

    def interrupt(text: str) -> None:
        if text == "Well, ":
            signal.raise_signal(signal.SIGINT)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"message": {"content": "Well, "}}\n')
        while True:
            await response.write(b'{"message": {"content": ""}}\n')
            await asyncio.sleep(0.001)

    class Endless(FakeDaemon):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.path == "/api/chat":
                return await endless(request)
            return await super().handle(request)

    async with Endless({"/api/generate": {"done": True}}).serve() as url:
        talk, _, notes = conversation(url)
        monkeypatch.setattr(talk.screen, "write", interrupt)
        async with talk.client:
            await chat(talk, typed("one"))
    assert notes.getvalue() == ""
    assert [message["content"] for message in talk.messages] == ["one", "Well, "]
