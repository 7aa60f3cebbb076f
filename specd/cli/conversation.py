"""One model and what is said to it: questions, answers, and what all requests carry."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from specd.cli.attachments import encode_file, extract_files
from specd.cli.client import Client
from specd.cli.pull import pull_model
from specd.cli.responses import DaemonRefused, Json
from specd.cli.terminal_output import Screen
from specd.cli.verbose_stats import report_lines
from specd.errors import SpecdError

T = TypeVar("T")

#: A GGUF that has none of these leaves the end of an answer to its bound: ten contexts of it.
_END_TOKENS: Final = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
#: A long answer; ten contexts take hours.
_MAX_TOKENS: Final = 2048
_NUM_PREDICT: Final = re.compile(r"^num_predict\s", re.MULTILINE)


@dataclass(slots=True)
class PartialAnswer:
    """What has come of an answer so far."""

    text: str = ""
    thinking: str = ""

    def message(self) -> Json:
        thinking = {"thinking": self.thinking} if self.thinking else {}
        return {"role": "assistant", "content": self.text} | thinking


@dataclass
class Conversation:
    """options, format, think, keep_alive: as the API has them; None leaves it to the daemon.

    system: in place of the model's own, where it is not empty.  messages: the turns so far.
    shown: what `/api/show` says of the model.
    """

    client: Client
    screen: Screen
    model: str
    options: Json = field(default_factory=dict)
    format: object = None
    think: bool | str | None = None
    keep_alive: str | None = None
    is_thinking_hidden: bool = False
    verbose: bool = False
    system: str = ""
    messages: list[Json] = field(default_factory=list)
    shown: Json = field(default_factory=dict)

    @property
    def capabilities(self) -> Sequence[str]:
        return self.shown.get("capabilities") or ()

    async def find(self, *, insecure: bool = False) -> None:
        """Read what is known of the model; one that is missing is pulled first."""
        try:
            self.shown = await self._fetch_model_info(self.model)
        except DaemonRefused as error:
            if error.status != 404:
                raise
            await pull_model(self.client, self.screen.notes, self.model, insecure=insecure)
            self.shown = await self._fetch_model_info(self.model)

    async def _fetch_model_info(self, model: str) -> Json:
        return await self.client.post("/api/show", {"model": model})

    async def load(self) -> None:
        self.screen.begin(f"loading {self.model}")
        try:
            await self.client.post("/api/generate", {**self._loading(), "stream": False})
        finally:
            self.screen.end()

    async def change_model(self, model: str) -> None:
        """To one that is here; what was said is forgotten.  On an error nothing has changed."""
        shown = await self._fetch_model_info(model)
        before = self.model, self.shown
        self.model, self.shown = model, shown
        try:
            await self.load()
        except SpecdError:
            self.model, self.shown = before
            raise
        self.messages = []

    async def save(self, name: str) -> None:
        """A new model: this one with the options, the system text and all messages."""
        body: Json = {"model": name, "from": self.model}
        if self.options:
            body["parameters"] = self.options
        if self.system:
            body["system"] = self.system
        if self.messages:
            said = [*(self.shown.get("messages") or ()), *self.messages]
            body["messages"] = [{key: m[key] for key in ("role", "content")} for m in said]
        async with aclosing(self.client.progress("/api/create", body)) as steps:
            async for _ in steps:
                pass

    async def answer(self, prompt: str) -> None:
        """One prompt, outside of any chat."""
        text, images = self._with_images(prompt)
        final = await self._stream("/api/generate", {"prompt": text, **images}, PartialAnswer())
        self.screen.say()
        self._report_truncation(final)
        self._report(final)

    async def say(self, text: str) -> None:
        """One turn.  Ctrl-C ends it, and what was heard until then counts as the answer."""
        partial = PartialAnswer()
        try:
            content, images = self._with_images(text)
            question = {"role": "user", "content": content, **images}
            system = [{"role": "system", "content": self.system}] if self.system else []
            body = {"messages": [*system, *self.messages, question]}
            final = await interruptible(self._stream("/api/chat", body, partial))
        except asyncio.CancelledError:
            final = {}
        except SpecdError as error:
            self.screen.note(f"Error: {error}")
            return
        self.screen.say("\n")
        self._report_truncation(final)
        if final or partial.text:
            self.messages += [question, partial.message()]
        self._report(final)

    def _with_images(self, prompt: str) -> tuple[str, Json]:
        text, files = extract_files(prompt, self.capabilities)
        for file in files:
            self.screen.note(f"Added '{file}'")
        return text, {"images": [encode_file(file) for file in files]} if files else {}

    def _loading(self) -> Json:
        keep_alive = {} if self.keep_alive is None else {"keep_alive": self.keep_alive}
        return {"model": self.model, "options": self.options, **keep_alive}

    @property
    def _token_limit(self) -> int | None:
        """How long an answer may be, in tokens, where the model itself has no end."""
        info = self.shown.get("model_info") or {}
        is_set = "num_predict" in self.options or _NUM_PREDICT.search(
            self.shown.get("parameters") or ""
        )
        if is_set or "tokenizer.ggml.model" not in info:
            return None
        return None if any(info.get(key) is not None for key in _END_TOKENS) else _MAX_TOKENS

    def _report_truncation(self, final: Json) -> None:
        if final.get("done_reason") == "length" and (limit := self._token_limit):
            self.screen.note(
                f"{self.model} has no end token: its answer was ended after {limit} tokens"
                " (/set parameter num_predict N allows more)"
            )

    def _fields(self) -> Json:
        asked = {"format": self.format, "think": self.think}
        fields = self._loading()
        if limit := self._token_limit:
            # Of the answer alone: a model that is saved has what the user has set.
            fields["options"] = {**self.options, "num_predict": limit}
        return fields | {name: value for name, value in asked.items() if value is not None}

    async def _stream(self, path: str, body: Json, partial: PartialAnswer) -> Json:
        """Write the answer as it comes; the final object."""
        part: Json = {}
        self.screen.begin()
        try:
            async with aclosing(self.client.stream(path, {**self._fields(), **body})) as parts:
                async for part in parts:
                    self._append_part(part.get("message") or part, partial)
        finally:
            self.screen.end()
        return part

    def _append_part(self, message: Json, partial: PartialAnswer) -> None:
        thinking = message.get("thinking") or ""
        text = message.get("response") or message.get("content") or ""
        partial.thinking += thinking
        partial.text += text
        if thinking and not self.is_thinking_hidden:
            self.screen.think(thinking)
        if text:
            self.screen.write(text)

    def _report(self, final: Json) -> None:
        if self.verbose:
            for line in report_lines(final, self.screen.notes_width):
                self.screen.note(line)


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; Ctrl-C cancels it alone, and raises CancelledError here."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)
