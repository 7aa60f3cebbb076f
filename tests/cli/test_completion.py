"""Completion, requested as the shells' scripts request it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import pytest

from specd.cli.app import main
from specd.cli.completion import COLON_PREFIX, join_split_names
from tests.cli.fake_daemon import FakeDaemon

MODELS = {"models": [{"name": name} for name in ("llama3.2:1b", "llama3.2:3b", "qwen3:8b")]}
LOADED = {"models": [{"name": "qwen3:8b"}]}
Offer = Callable[[str, Sequence[str]], Awaitable[list[str]]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offer:
    """Return a function that completes the last word as bash does, with the daemon at a URL."""

    async def ask(url: str, words: Sequence[str]) -> list[str]:
        variables = {
            "OLLAMA_HOST": url,
            "_SPECD_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
            COLON_PREFIX: "",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main)
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out.split()

    return ask


@pytest.mark.parametrize(
    "line,names",
    [
        (["run", "lla"], ["llama3.2:1b", "llama3.2:3b"]),
        (["run", "--verbose", "q"], ["qwen3:8b"]),
        (["run", "none"], []),
        (["show", ""], ["llama3.2:1b", "llama3.2:3b", "qwen3:8b"]),
        (["stop", ""], ["qwen3:8b"]),
        (["rm", "qwen3:8b", "llama"], ["llama3.2:1b", "llama3.2:3b"]),
        (["cp", "q"], ["qwen3:8b"]),
        (["push", "q"], ["qwen3:8b"]),
        (["bench", "q"], ["qwen3:8b"]),
        (["pairs", "q"], ["qwen3:8b"]),
        (["pairs", "re"], ["refuse", "remove"]),
        (["pairs", "add", "qwen3:8b", "ll"], ["llama3.2:1b", "llama3.2:3b"]),
        (["pairs", "suggest", "q"], ["qwen3:8b"]),
        # bash ends a word at a colon, and replaces what follows it.
        (["run", "llama3.2", ":"], ["1b", "3b"]),
        (["run", "llama3.2", ":", "3"], ["3b"]),
        (["rm", "qwen3", ":", "8b", "llama3.2", ":", "1"], ["1b"]),
        # COMP_WORDBREAKS without a colon changes that.
        (["run", "llama3.2:3"], ["llama3.2:3b"]),
    ],
    ids=" ".join,
)
async def test_completion_offers_model_names(
    line: Sequence[str], names: Sequence[str], offered: Offer
) -> None:
    async with FakeDaemon({"/api/tags": MODELS, "/api/ps": LOADED}).serve() as url:
        assert await offered(url, ["specd", *line]) == names


@pytest.mark.parametrize("answer", [{"models": 1}, {"models": [1, {"name": 2}, {}]}, {}])
async def test_completion_ignores_an_unexpected_answer(answer: object, offered: Offer) -> None:
    async with FakeDaemon({"/api/tags": answer}).serve() as url:
        assert await offered(url, ["specd", "run", ""]) == []


async def test_completion_without_a_daemon_is_empty(offered: Offer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert await offered(f"127.0.0.1:{probe.getsockname()[1]}", ["specd", "run", ""]) == []


async def test_completion_does_not_wait_for_a_silent_daemon(offered: Offer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert await offered(url, ["specd", "run", ""]) == []


@pytest.mark.parametrize(
    "words,cursor,joined,position,before",
    [
        ("specd run a : b", 4, "specd run b", 2, "a:"),
        ("specd push host : 1/x : y", 6, "specd push y", 2, "host:1/x:"),
        ("specd run a : b c", 5, "specd run a:b c", 3, None),
        ("specd run a", 2, "specd run a", 2, None),
    ],
)
def test_words_are_joined_at_colons(
    words: str, cursor: int, joined: str, position: int, before: str | None
) -> None:
    environment = {
        "_SPECD_COMPLETE": "complete_bash",
        "COMP_WORDS": words.replace(" ", "\n"),
        "COMP_CWORD": str(cursor),
    }
    join_split_names(environment)
    del environment["_SPECD_COMPLETE"]
    wanted = {"COMP_WORDS": joined.replace(" ", "\n"), "COMP_CWORD": str(position)}
    assert environment == wanted | ({COLON_PREFIX: before} if before else {})
