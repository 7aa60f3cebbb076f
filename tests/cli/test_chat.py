"""Slash commands of `specd run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specd.cli.chat import SlashCommands
from specd.cli.conversation import Conversation
from specd.cli.keyboard import Keyboard
from tests.cli.conversation_helpers import asked_of, conversation, daemon
from tests.cli.fake_daemon import FakeDaemon

SHOWN = {
    "license": "MIT",
    "modelfile": "FROM x",
    "parameters": "temperature 1",
    "system": "Be brief.",
    "template": "{{ .Prompt }}",
    "capabilities": ["completion", "vision"],
    "messages": [{"role": "user", "content": "Hi"}],
}


async def execute(fake: FakeDaemon, *lines: str, **fields: Any) -> tuple[Conversation, str, bool]:
    """Return the conversation after the lines, its output, and whether it continues."""
    async with fake.serve() as url:
        talk, out, notes = conversation(url, **fields)
        async with talk.client:
            await talk.find()
            commands = SlashCommands(talk)
            goes_on = [await commands.execute(line) for line in lines]
    return talk, out.getvalue() + notes.getvalue(), all(goes_on)


async def test_settings_go_into_every_request() -> None:
    fake = daemon()
    await execute(
        fake,
        "/set parameter temperature 0.5",
        "/set parameter num_ctx 64",
        "/set parameter stop a b",
        "/set format json",
        "/set think high",
        "/set system Be  kind.",
        "one",
        "/set noformat",
        "/set nothink",
        "two",
        "/set think",
        "three",
    )
    first, second, third = asked_of(fake, "chat")
    assert first["options"] == {"temperature": 0.5, "num_ctx": 64, "stop": ["a", "b"]}
    assert (first["format"], first["think"]) == ("json", "high")
    assert first["messages"][0] == {"role": "system", "content": "Be  kind."}
    assert ("format" in second, second["think"]) == (False, False)
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert third["think"] is True


async def test_slash_set_changes_the_session() -> None:
    talk, said, _ = await execute(daemon(), "/set verbose", "/set nowordwrap", "/set history")
    assert (talk.verbose, talk.screen.wraps) == (True, False)
    assert said == "verbose is set.\nnowordwrap is set.\nhistory is set.\n"
    talk, _, _ = await execute(daemon(), "/set verbose", "/set quiet", "/set wordwrap")
    assert (talk.verbose, talk.screen.wraps) == (False, True)


async def test_the_history_can_be_switched_off() -> None:
    keyboard = Keyboard()
    async with daemon().serve() as url:
        commands = SlashCommands(conversation(url)[0], keyboard)
        await commands.execute("/set nohistory")
        assert not keyboard.remembers
        await commands.execute("/set history")
        assert keyboard.remembers


@pytest.mark.parametrize(
    "line,said",
    [
        ("/set parameter temperature hot", "Error: invalid float value [hot]"),
        ("/set parameter num_ctx 1.5", "Error: invalid int value [1.5]"),
        ("/set parameter heat 1", "Error: unknown parameter 'heat'"),
        ("/set parameter", "Error: /set parameter needs a name and a value"),
        ("/set parameter seed", "Error: /set parameter needs a name and a value"),
        ("/set format xml", "Error: the format is json; /set noformat resets it"),
        ("/set think deeply", "Error: the thinking level must be one of low, medium, high, max"),
        ("/set system", "Error: /set system needs a text"),
        ("/load", "Error: /load needs the name of a model"),
        ("/save", "Error: /save needs a name for the new model"),
        ("/sing", "/sing is not a command; /? lists them."),
        ("/none.png is nowhere", "/none.png is not a command; /? lists them."),
    ],
)
async def test_an_error_of_a_command_does_not_end_the_session(line: str, said: str) -> None:
    fake = daemon(SHOWN)
    talk, out, goes_on = await execute(fake, line)
    assert (out, goes_on) == (f"{said}\n", True)
    assert (talk.options, talk.format, talk.think) == ({}, None, None)
    assert len(fake.asked) == 1


async def test_thinking_on_a_model_without_it_gives_a_note() -> None:
    _, said, _ = await execute(daemon(), "/set think")
    assert said == "Note: m does not support thinking.\nthink is set.\n"


@pytest.mark.parametrize(
    "part,said",
    [
        ("license", "MIT\n"),
        ("modelfile", "FROM x\n"),
        ("template", "{{ .Prompt }}\n"),
        ("system", "Be brief.\n"),
        ("info", "  Capabilities\n    completion\n    vision\n"),
        ("parameters", "Of the model:\ntemperature 1\n\nOf this session:\n  none\n"),
        ("", "/show template"),
        ("nonsense", "/show template"),
    ],
)
async def test_slash_show_prints_details_of_the_model(part: str, said: str) -> None:
    _, out, _ = await execute(daemon(SHOWN), f"/show {part}")
    assert said in out


async def test_slash_show_reports_missing_parts() -> None:
    _, out, _ = await execute(daemon(), "/show license", "/show system", "/show parameters")
    assert out.startswith("There is no license.\nThere is no system prompt.\nOf the model:\n  none")


async def test_slash_show_prints_the_sessions_settings() -> None:
    _, out, _ = await execute(
        daemon(SHOWN),
        *("/set system Be kind.", "/show system", "/set parameter seed 3", "/show parameters"),
    )
    assert "\nBe kind.\n" in out
    assert f"{'seed':<30} 3\n" in out


@pytest.mark.parametrize(
    "line,said",
    [
        ("/?", "/save NAME"),
        ("/help", "/save NAME"),
        ("/? set", "/set nohistory"),
        ("/? /show", "/show info"),
        ("/? shortcuts", "Ctrl-D"),
        ("/set", "/set nohistory"),
        ("/set colour", "/set nohistory"),
    ],
)
async def test_help_fits_a_terminal(line: str, said: str) -> None:
    _, out, goes_on = await execute(daemon(), line)
    assert said in out
    assert goes_on
    assert max(map(len, out.splitlines())) < 80


@pytest.mark.parametrize("line", ["/bye", "/exit", "  /bye  "])
async def test_bye_and_exit_end_the_session(line: str) -> None:
    assert not (await execute(daemon(), line))[2]


async def test_slash_load_switches_the_model_and_drops_the_messages() -> None:
    fake = daemon()
    talk, _, _ = await execute(fake, "one", "/load n", "two")
    assert asked_of(fake, "show")[1] == {"model": "n"}
    assert asked_of(fake, "generate") == [{"model": "n", "options": {}, "stream": False}]
    assert (asked_of(fake, "chat")[1]["model"], len(talk.messages)) == ("n", 2)


async def test_slash_load_of_a_missing_model_changes_nothing() -> None:
    def generate(body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] == "n"
        return {"error": "damaged"}

    fake = daemon(generate=generate)
    fake.status = {"/api/generate": 500}
    talk, said, _ = await execute(fake, "one", "/load n")
    assert said.endswith("Error: damaged\n")
    assert (talk.model, len(talk.messages)) == ("m", 2)


async def test_slash_save_creates_a_model() -> None:
    fake = daemon(SHOWN, create=[{"status": "writing manifest"}, {"status": "success"}])
    _, said, _ = await execute(
        fake, "/set parameter seed 3", "/set system Be kind.", "one", "/save mine"
    )
    assert asked_of(fake, "create") == [
        {
            "model": "mine",
            "from": "m",
            "parameters": {"seed": 3},
            "system": "Be kind.",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "answer 2"},
            ],
        }
    ]
    assert said.endswith("Saved as 'mine'.\n")


async def test_a_line_may_start_with_an_image_and_images_are_not_saved(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"PNG")
    fake = daemon(SHOWN, create=[{"status": "success"}])
    _, said, _ = await execute(fake, f"{tmp_path}/a.png what is it", "/save mine")
    question = {"role": "user", "content": "what is it", "images": ["UE5H"]}
    assert asked_of(fake, "chat")[0]["messages"] == [question]
    assert asked_of(fake, "create")[0]["messages"][1] == {"role": "user", "content": "what is it"}
    assert "Images were not saved.\n" in said
