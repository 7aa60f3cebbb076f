"""What `specd run` does with a model: one answer, a chat in the terminal, or a vector."""

from __future__ import annotations

import json
from collections.abc import Callable

from specd.cli.answers import Json
from specd.cli.commands import Commands
from specd.cli.conversation import Conversation
from specd.cli.keyboard import HISTORY_FILE, Keyboard, read_message
from specd.errors import InvalidRequest
from specd.settings import Settings


async def converse(
    talk: Conversation, text: str, vector: Json, *, chats: bool, insecure: bool = False
) -> None:
    """Answer `text`, chat where there is none, or print a vector, as the model allows.

    vector: fields of the request where the model gives vectors.  chats: a user types.
    """
    async with talk.client:
        await talk.find(insecure=insecure)
        if "embedding" in talk.capabilities and "completion" not in talk.capabilities:
            await _print_vector(talk, text, vector)
        elif text:
            await talk.answer(text)
        elif chats:
            settings = Settings()
            folder = None if settings.nohistory else settings.state_dir
            keyboard = Keyboard(folder / HISTORY_FILE if folder else None)
            keyboard.remembers = not settings.nohistory
            await chat(talk, keyboard.read_line, keyboard)
        else:
            await talk.load()


async def chat(
    talk: Conversation, read_line: Callable[[str], str], keyboard: Keyboard | None = None
) -> None:
    """Turns until /bye or the end of the input.  read_line: as `input`."""
    await talk.load()
    talk.screen.say("/? for help, Ctrl-D or /bye to leave")
    _recite(talk)
    commands = Commands(talk, keyboard)

    def hint() -> None:
        talk.screen.say("\nCtrl-D or /bye leaves.")

    while (line := read_message(read_line, hint)) is not None:
        if not await commands.take(line):
            return
    talk.screen.say()


def _recite(talk: Conversation) -> None:
    """The turns that the model's Modelfile has; the daemon adds them to each request."""
    for message in talk.shown.get("messages") or ():
        match message["role"]:
            case "user":
                talk.screen.say(f">>> {message['content']}")
            case "assistant":
                talk.screen.begin()
                talk.screen.write(message["content"])
                talk.screen.end()
                talk.screen.say("\n")


async def _print_vector(talk: Conversation, text: str, vector: Json) -> None:
    if not text:
        raise InvalidRequest(f"{talk.model} gives vectors: it needs a text")
    body: Json = {"model": talk.model, "input": text, "options": talk.options}
    fields = vector | {"keep_alive": talk.keep_alive}
    body |= {name: value for name, value in fields.items() if value is not None}
    answer = await talk.client.post("/api/embed", body)
    talk.screen.say(json.dumps(answer["embeddings"][0], separators=(",", ":")))
