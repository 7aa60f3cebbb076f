"""`specd run`: a prompt, a chat, and what is said of speculation."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web
from rich.console import Console

from specd.cli.client import Client, DaemonRefused
from specd.cli.run import Conversation, read_message, report_lines, speculation_words
from tests.cli.fake_daemon import FakeDaemon, Json

FINAL = {
    "done": True,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 10**9,
    "eval_count": 100,
    "eval_duration": 4 * 10**9,
    "speculation": {
        "drafter": "small",
        "draft_n": 80,
        "draft_n_accepted": 60,
        "state": "active",
        "reason": "",
        "speedup": 1.5,
    },
}


def conversation(url: str, *, verbose: bool = False) -> tuple[Conversation, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=200)
    return Conversation(Client(url), console, {"model": "m"}, verbose=verbose), out


def typed(*lines: str) -> Callable[[str], str]:
    rest: Iterator[str] = iter(lines)

    def read_line(_prompt: str) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    return read_line


async def test_an_answer_is_written_as_it_comes() -> None:
    daemon = FakeDaemon({"/api/generate": [{"response": "Hel"}, {"response": "lo [b]"}, FINAL]})
    async with daemon.serve() as url:
        talk, out = conversation(url, verbose=True)
        await talk.answer_once("Hi")
    assert daemon.asked == [("/api/generate", {"model": "m", "prompt": "Hi"})]
    assert out.getvalue().splitlines()[0] == "Hello [b]"
    assert "60 of 80 drafted tokens accepted (75%)" in out.getvalue()


async def test_a_chat_remembers_its_turns_until_it_is_cleared() -> None:
    def chat(body: Json) -> list[Json]:
        said = f"answer {len(body['messages'])}"
        return [{"message": {"content": said}}, {"message": {"content": ""}, "done": True}]

    daemon = FakeDaemon({"/api/generate": {"done": True}, "/api/chat": chat})
    async with daemon.serve() as url:
        talk, out = conversation(url)
        await talk.chat(typed("one", "", "two", "/clear", "three", "/bye", "never"))
    chats = [body["messages"] for path, body in daemon.asked if path == "/api/chat"]
    assert [[m["content"] for m in messages] for messages in chats] == [
        ["one"],
        ["one", "answer 1", "two"],
        ["three"],
    ]
    assert "answer 3" in out.getvalue()


async def test_a_refused_turn_is_said_and_is_not_remembered() -> None:
    daemon = FakeDaemon(
        {"/api/generate": {"done": True}, "/api/chat": {"error": "too long"}},
        status={"/api/chat": 400},
    )
    async with daemon.serve() as url:
        talk, out = conversation(url)
        await talk.chat(typed("one"))
    assert "Error: too long" in out.getvalue()
    assert talk.messages == []


class Missing(FakeDaemon):
    """Has no model until it is pulled."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api/generate" and "/api/pull" not in [path for path, _ in self.asked]:
            self.asked.append((request.path, {}))
            return web.json_response({"error": "model 'm' not found"}, status=404)
        return await super().handle(request)


@pytest.mark.parametrize("chats", [False, True])
async def test_a_model_that_is_missing_is_pulled(chats: bool) -> None:
    daemon = Missing(
        {
            "/api/generate": FINAL if chats else [{"response": "Hello"}, FINAL],
            "/api/pull": [{"status": "pulling manifest"}, {"status": "success"}],
        }
    )
    async with daemon.serve() as url:
        talk, out = conversation(url)
        await (talk.chat(typed("/bye")) if chats else talk.answer_once("Hi"))
    assert [path for path, _ in daemon.asked] == ["/api/generate", "/api/pull", "/api/generate"]
    assert daemon.asked[1][1] == {"model": "m"}
    assert "pulling manifest\nsuccess\n" in out.getvalue()
    assert chats or out.getvalue().endswith("Hello\n")


async def test_a_model_that_no_registry_has_is_known_before_anything_is_typed() -> None:
    daemon = FakeDaemon(
        {
            "/api/generate": {"error": "model 'm' not found"},
            "/api/pull": [{"error": "pull model manifest: file does not exist"}],
        },
        status={"/api/generate": 404},
    )
    async with daemon.serve() as url:
        talk, _ = conversation(url)
        with pytest.raises(DaemonRefused, match="pull model manifest: file does not exist"):
            await talk.chat(typed("one"))


@pytest.mark.parametrize(
    "lines,message",
    [
        (["hello"], "hello"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "one", '"""'], "\none\n"),
        (["/bye"], None),
        ([], None),
        (['"""unfinished'], None),
    ],
)
def test_messages_are_lines_or_what_stands_between_fences(
    lines: list[str], message: str | None
) -> None:
    assert read_message(typed(*lines)) == message


def test_the_report_has_speeds_only_where_time_was_measured() -> None:
    assert report_lines({"eval_count": 2})[1] == "answer:       2 tokens"
    assert report_lines(FINAL)[1] == "answer:       100 tokens, 25.0 tokens/s"


def test_parked_speculation_says_why() -> None:
    words = speculation_words({"state": "parked", "reason": "cost", "detail": "It did not pay."})
    assert words == "parked, It did not pay."
