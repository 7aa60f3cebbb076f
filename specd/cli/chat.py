"""Run one prompt, a chat in the terminal, or an embedding for `specd run`."""

from __future__ import annotations

import json
from collections.abc import Callable

from specd.cli.conversation import Conversation
from specd.cli.keyboard import HISTORY_FILE, Keyboard, read_message
from specd.cli.responses import Json
from specd.cli.slash_commands import SlashCommands
from specd.errors import InvalidRequest
from specd.settings import Settings


async def answer_or_chat(
    conversation: Conversation, text: str, vector: Json, *, chats: bool, insecure: bool = False
) -> None:
    """Answer `text`; without a text, chat.  An embedding model prints a vector.

    vector: request fields for embedding models.  chats: stdin is a terminal.
    """
    async with conversation.client:
        await conversation.find(insecure=insecure)
        if (
            "embedding" in conversation.capabilities
            and "completion" not in conversation.capabilities
        ):
            await _print_vector(conversation, text, vector)
        elif text:
            await conversation.answer(text)
        elif chats:
            settings = Settings()
            folder = None if settings.nohistory else settings.state_dir
            keyboard = Keyboard(folder / HISTORY_FILE if folder else None)
            keyboard.remembers = not settings.nohistory
            await chat(conversation, keyboard.read_line, keyboard)
        else:
            await conversation.load()


async def chat(
    conversation: Conversation, read_line: Callable[[str], str], keyboard: Keyboard | None = None
) -> None:
    """Run turns until /bye or the end of the input.  read_line: reads a line, like `input`."""
    await conversation.load()
    conversation.screen.say("/? for help, Ctrl-D or /bye to leave")
    _print_history(conversation)
    commands = SlashCommands(conversation, keyboard)

    def hint() -> None:
        conversation.screen.say("\nCtrl-D or /bye leaves.")

    while (line := read_message(read_line, hint)) is not None:
        if not await commands.execute(line):
            return
    conversation.screen.say()


def _print_history(conversation: Conversation) -> None:
    """Print the messages of the model's Modelfile; the daemon adds them to each request."""
    for message in conversation.shown.get("messages") or ():
        match message["role"]:
            case "user":
                conversation.screen.say(f">>> {message['content']}")
            case "assistant":
                conversation.screen.begin()
                conversation.screen.write(message["content"])
                conversation.screen.end()
                conversation.screen.say("\n")


async def _print_vector(conversation: Conversation, text: str, vector: Json) -> None:
    if not text:
        raise InvalidRequest(f"{conversation.model} is an embedding model: it needs a text")
    body: Json = {"model": conversation.model, "input": text, "options": conversation.options}
    fields = vector | {"keep_alive": conversation.keep_alive}
    body |= {name: value for name, value in fields.items() if value is not None}
    answer = await conversation.client.post("/api/embed", body)
    conversation.screen.say(json.dumps(answer["embeddings"][0], separators=(",", ":")))
