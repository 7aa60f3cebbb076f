"""`specd run`: one prompt, or a chat in the terminal."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from specd.cli.client import Json, daemon_client
from specd.cli.commands import LEVELS, Commands
from specd.cli.conversation import Conversation
from specd.cli.keyboard import HISTORY_FILE, Keyboard, read_message
from specd.cli.screen import terminal_screen
from specd.errors import InvalidRequest
from specd.settings import Settings

_TRUTH: Final = {"true": True, "false": False}
#: May stand alone, as in Ollama: a value only follows `=`.
_ALONE: Final = {"--think": "--think=true", "--truncate": "--truncate=true"}


class RunCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*(_ALONE.get(a, a) for a in args[:end]), *args[end:]])


def run(
    model: Annotated[str, typer.Argument(help="A model; one that is missing is pulled.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Answer this, after what stdin has; else chat.")
    ] = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say how fast, and what was drafted.")
    ] = False,
    answer_format: Annotated[
        str | None, typer.Option("--format", help="json, or the text of a JSON schema.")
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(metavar="[=LEVEL]", help=f"true, false, {', '.join(LEVELS)}."),
    ] = None,
    hidethinking: Annotated[
        bool, typer.Option("--hidethinking", help="Think, but do not show it.")
    ] = False,
    keepalive: Annotated[
        str | None, typer.Option(help="How long the model stays loaded, e.g. 5m.")
    ] = None,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Leave long lines to the terminal.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Pull over plain HTTP.")] = False,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Of a vector: its first so many numbers.")
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(metavar="[=false]", help="Cut what is too long for a vector; the default."),
    ] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Decode without speculation.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
) -> None:
    """Ask a model, or chat with it; of an embedding model, print the vector of a text."""
    options: Json = {"draft_num_predict": 0} if no_draft else {}
    if seed is not None:
        options["seed"] = seed
    talk = Conversation(
        daemon_client(),
        terminal_screen(),
        model,
        options=options,
        format=_read_format(answer_format),
        think=_read_choice("--think", think, LEVELS),
        keep_alive=keepalive,
        hides_thinking=hidethinking,
        verbose=verbose,
    )
    talk.screen.wraps = not nowordwrap
    vector = {"dimensions": dimensions, "truncate": _read_choice("--truncate", truncate)}
    types = sys.stdin.isatty()
    text = _whole_prompt("" if types else _piped(), prompt or [])
    asyncio.run(_run(talk, text, vector, chats=types and not prompt, insecure=insecure))


async def _run(
    talk: Conversation, text: str, vector: Json, *, chats: bool, insecure: bool = False
) -> None:
    """vector: fields of the request where the model gives no text."""
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


def _piped() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _whole_prompt(piped: str, words: Sequence[str]) -> str:
    """As Ollama joins them: what is piped comes first."""
    return " ".join([piped, *words] if piped.strip() else words)


def _read_format(text: str | None) -> object:
    if text is None or text in {"", "json"}:
        return text or None
    try:
        schema = json.loads(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise InvalidRequest("--format must be json or a JSON schema")
    return schema


def _read_choice(name: str, text: str | None, more: Collection[str] = ()) -> Any:
    if text is None or text in more:
        return text
    if text not in _TRUTH:
        raise InvalidRequest(f"{name} must be one of {', '.join([*_TRUTH, *more])}")
    return _TRUTH[text]
