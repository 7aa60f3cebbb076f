"""Implement `specd run`: answer one prompt, or chat in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from specd.cli.completion import complete_models
from specd.cli.sync_client import Json
from specd.errors import InvalidRequest

LEVELS: Final = ("low", "medium", "high", "max")
_BOOLEANS: Final = {"true": True, "false": False}
#: Options whose value must follow `=`, as in Ollama.
_FLAGS_WITHOUT_VALUE: Final = {"--think": "--think=true", "--truncate": "--truncate=true"}


app = typer.Typer(add_completion=False, rich_markup_mode=None)


class RunCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(
            ctx, [*(_FLAGS_WITHOUT_VALUE.get(a, a) for a in args[:end]), *args[end:]]
        )


@app.command(cls=RunCommand)
def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A model; it is pulled if it is missing.", autocompletion=complete_models
        ),
    ],
    prompt: Annotated[
        list[str] | None, typer.Argument(help="The prompt, appended to stdin; without it, chat.")
    ] = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print speed and drafting statistics.")
    ] = False,
    answer_format: Annotated[
        str | None, typer.Option("--format", help="`json`, or a JSON schema.")
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(metavar="[=LEVEL]", help=f"true, false, {', '.join(LEVELS)}."),
    ] = None,
    hidethinking: Annotated[
        bool, typer.Option("--hidethinking", help="Do not print the thinking.")
    ] = False,
    keepalive: Annotated[
        str | None, typer.Option(help="How long the model stays in memory, e.g. 5m.")
    ] = None,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Do not wrap lines at words.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use plain HTTP for a pull.")
    ] = False,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Length of the printed vector, for embedding models.")
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(
            metavar="[=false]", help="Truncate long input, for embedding models (default: true)."
        ),
    ] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Decode without speculation.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed; it usually gives the same text again.")
    ] = None,
) -> None:
    import asyncio

    from specd.cli.chat import answer_or_chat
    from specd.cli.client import daemon_client
    from specd.cli.conversation import Conversation
    from specd.cli.terminal_output import terminal_screen

    options: Json = {"draft_num_predict": 0} if no_draft else {}
    if seed is not None:
        options["seed"] = seed
    conversation = Conversation(
        daemon_client(),
        terminal_screen(),
        model,
        options=options,
        format=_read_format(answer_format),
        think=_read_choice("--think", think, LEVELS),
        keep_alive=keepalive,
        is_thinking_hidden=hidethinking,
        verbose=verbose,
    )
    conversation.screen.wraps = not nowordwrap
    vector = {"dimensions": dimensions, "truncate": _read_choice("--truncate", truncate)}
    types = sys.stdin.isatty()
    text = _whole_prompt("" if types else _piped(), prompt or [])
    asyncio.run(
        answer_or_chat(conversation, text, vector, chats=types and not prompt, insecure=insecure)
    )


def _piped() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _whole_prompt(piped: str, words: Sequence[str]) -> str:
    """Join the prompt as Ollama does: the text from stdin comes first."""
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
    if text not in _BOOLEANS:
        raise InvalidRequest(f"{name} must be one of {', '.join([*_BOOLEANS, *more])}")
    return _BOOLEANS[text]
