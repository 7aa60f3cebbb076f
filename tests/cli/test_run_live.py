"""`specd run`, `stop` and `rm` with a real daemon."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from specd.cli.chat import answer_or_chat, chat
from specd.cli.client import Client
from specd.cli.conversation import Conversation
from specd.cli.terminal_output import Screen
from tests.cli.conversation_helpers import typed
from tests.cli.specd_command import specd
from tests.contract.conftest import SCRIPTS, SPEAKING, WORDS
from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.scripted_model import write_scripted_model

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "m.gguf")
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    store.add("m", weights=weights, messages=turns, params={"temperature": 0.5})
    async with running(tmp_path, engine=FAKE_ENGINE, SPECD_DEMO="0") as daemon:
        yield daemon


async def test_commands_in_a_shell(daemon: Daemon, tmp_path: Path) -> None:
    answer = await specd(daemon, "run", "m", "sum it", folder=tmp_path, stdin=b"one two\n")
    assert b"one two" in answer
    assert answer.endswith(b"\n")
    assert b"m:latest" in await specd(daemon, "ps", folder=tmp_path)
    assert await specd(daemon, "stop", "m", folder=tmp_path) == b""
    assert await specd(daemon, "rm", "m", folder=tmp_path) == b"deleted 'm'\n"
    assert await specd(daemon, "list", folder=tmp_path) == b"NAME    ID    SIZE    MODIFIED\n"
    said = await specd(daemon, "show", "m", folder=tmp_path, status=1)
    assert said == b"Error: model 'm:latest' not found\n"


async def test_a_saved_model_continues_the_conversation(daemon: Daemon) -> None:
    screen = Screen(io.StringIO(), Console(file=io.StringIO()), is_terminal=False)
    talk = Conversation(Client(daemon.url), screen, "m")
    lines = ("/set parameter seed 3", "/set system Be kind.", "one", "/save mine", "/load mine")
    async with talk.client:
        await talk.find()
        await chat(talk, typed(*lines))
    assert talk.model == "mine"
    assert talk.shown["system"] == "Be kind."
    assert [line.split() for line in talk.shown["parameters"].splitlines()] == [
        ["seed", "3"],
        ["temperature", "0.5"],
    ]
    said = [message["content"] for message in talk.shown["messages"]]
    assert said[:3] == ["Hi", "Ho", "one"]
    assert "one" in said[3]


@pytest.mark.native
async def test_real_engines_answer_think_and_embed(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("speaker", weights=write_scripted_model(tmp_path / "s.gguf", SCRIPTS, SPEAKING))
    pooled = write_llama(tmp_path / "e.gguf", extra={"llama.pooling_type": 1})
    store.add("embedder", weights=pooled)
    async with running(tmp_path) as daemon:
        plain = await specd(daemon, "run", "speaker", "--think=false", "x", folder=tmp_path)
        assert plain.decode() == f"{WORDS}\n"
        hidden = await specd(daemon, "run", "speaker", "x", "--hidethinking", folder=tmp_path)
        assert hidden.strip() == b"So be it, then."
        shown = await specd(daemon, "run", "--think", "speaker", "x", folder=tmp_path)
        assert shown.startswith(b"Thinking...\nIt is all the same to me.")
        assert b"...done thinking.\n\nSo be it, then." in shown
        out = io.StringIO()
        screen = Screen(out, Console(file=io.StringIO()), is_terminal=False)
        talk = Conversation(Client(daemon.url), screen, "embedder")
        await answer_or_chat(talk, "x", {"dimensions": 4, "truncate": False}, chats=False)
        assert len(json.loads(out.getvalue())) == 4
