"""`specd run`: one prompt, or a chat in the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from specd.cli.client import Client, DaemonRefused, Json, daemon_client
from specd.cli.pull import pull_model
from specd.cli.words import make_console

_HELP = """\
/clear      forget the conversation
/bye        leave (also Ctrl-D); Ctrl-C stops a running answer
\"\"\"         begins and ends a message of several lines"""
_FENCE = '"""'

T = TypeVar("T")


def run(
    model: Annotated[str, typer.Argument(help="A model; one that is missing is pulled.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Answer this; without it, chat.")
    ] = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say how fast, and what was drafted.")
    ] = False,
    no_draft: Annotated[bool, typer.Option(help="Decode without speculation.")] = False,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    keepalive: Annotated[
        str | None, typer.Option(help="How long the model stays loaded, e.g. 5m.")
    ] = None,
) -> None:
    """Ask a model, or chat with it."""
    options: Json = {}
    if no_draft:
        options["draft_num_predict"] = 0
    if seed is not None:
        options["seed"] = seed
    fields: Json = {"model": model, "options": options}
    if keepalive is not None:
        fields["keep_alive"] = keepalive
    conversation = Conversation(daemon_client(), make_console(), fields, verbose=verbose)
    text = " ".join(prompt or [])
    if not sys.stdin.isatty():
        text = "\n\n".join(part for part in (text, sys.stdin.read().strip()) if part)
    if text:
        asyncio.run(conversation.answer_once(text))
    else:
        asyncio.run(conversation.chat(input))


@dataclass
class Conversation:
    """fields: what every request carries.  messages: the turns so far."""

    client: Client
    console: Console
    fields: Json
    verbose: bool = False
    messages: list[Json] = field(default_factory=list)

    async def answer_once(self, prompt: str) -> None:
        async with self.client:
            body: Json = {"prompt": prompt}
            final, _ = await self._or_pull(lambda: self._stream("/api/generate", body))
        self._report(final)

    async def chat(self, read_line: Callable[[str], str]) -> None:
        """Turns until /bye or the end of the input.  read_line: as `input`."""
        async with self.client:
            # Loads the model while the first message is being typed, and finds it missing now.
            body = {**self.fields, "stream": False}
            await self._or_pull(lambda: self.client.post("/api/generate", body))
            while (text := read_message(read_line)) is not None:
                await self._turn(text)

    async def _or_pull(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of `ask`, the second time where a model that is missing had to be pulled."""
        try:
            return await ask()
        except DaemonRefused as error:
            if error.status != 404:
                raise
        await pull_model(self.client, self.console, self.fields["model"])
        return await ask()

    async def _turn(self, text: str) -> None:
        match text.split():
            case []:
                return
            case ["/clear"]:
                self.messages.clear()
                self.console.print("The conversation is forgotten.")
            case [word, *_] if word.startswith("/"):
                self.console.print(_HELP, markup=False)
            case _:
                await self._ask(text)

    async def _ask(self, text: str) -> None:
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            final, said = await interruptible(self._stream("/api/chat", {"messages": messages}))
        except asyncio.CancelledError:
            self.console.print("\n[stopped]", markup=False)
            return
        except DaemonRefused as error:
            self.console.print(f"Error: {error}", markup=False, style="red")
            return
        self.messages = [*messages, {"role": "assistant", "content": said}]
        self._report(final)

    async def _stream(self, path: str, body: Json) -> tuple[Json, str]:
        """Write the answer as it comes; the final object, and the text without its thinking."""
        said: list[str] = []
        part: Json = {}
        async with aclosing(self.client.stream(path, {**self.fields, **body})) as parts:
            async for part in parts:
                message = part.get("message") or part
                text = message.get("response") or message.get("content") or ""
                if thinking := message.get("thinking"):
                    self._write(thinking, style="dim")
                self._write(text)
                said.append(text)
        self.console.print()
        return part, "".join(said)

    def _write(self, text: str, style: str | None = None) -> None:
        self.console.print(text, end="", markup=False, soft_wrap=True, style=style)

    def _report(self, final: Json) -> None:
        if self.verbose:
            for line in report_lines(final):
                self.console.print(line, markup=False, style="dim")


def report_lines(final: Json) -> list[str]:
    """What the final object says of speed and of speculation."""
    lines = []
    for title, count, duration in (
        ("prompt", "prompt_eval_count", "prompt_eval_duration"),
        ("answer", "eval_count", "eval_duration"),
    ):
        n, ns = final.get(count, 0), final.get(duration, 0)
        speed = f", {n / ns * 1e9:.1f} tokens/s" if ns else ""
        lines.append(f"{title + ':':<14}{n} tokens{speed}")
    speculation = final.get("speculation")
    if speculation:
        lines.append(f"{'speculation:':<14}{speculation_words(speculation)}")
    return lines


def speculation_words(speculation: Json) -> str:
    """One line: who drafted, what was kept, or why nothing was drafted."""
    words = [f"{speculation['state']}"]
    if drafter := speculation.get("drafter"):
        words.append(f"drafter {drafter}")
    if n := speculation.get("draft_n"):
        kept = speculation["draft_n_accepted"]
        words.append(f"{kept} of {n} drafted tokens accepted ({kept / n:.0%})")
    if speedup := speculation.get("speedup"):
        words.append(f"{speedup:.2f} × plain")
    if reason := speculation.get("detail") or speculation.get("reason"):
        words.append(str(reason))
    return ", ".join(words)


def read_message(read_line: Callable[[str], str]) -> str | None:
    """One message, of several lines between triple quotes; None at /bye and at the end."""
    try:
        line = read_line(">>> ")
        if line.strip() == "/bye":
            return None
        if not line.startswith(_FENCE):
            return line
        lines = [line.removeprefix(_FENCE)]
        while not lines[-1].rstrip().endswith(_FENCE):
            lines.append(read_line("... "))
        return "\n".join(lines).rstrip().removesuffix(_FENCE)
    except (EOFError, KeyboardInterrupt):
        return None


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; Ctrl-C cancels it alone, and raises CancelledError here."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)
