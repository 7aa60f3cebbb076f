"""Hold a conversation with one model: its messages, and the fields that all requests share."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
from collections.abc import Collection, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from specd.cli.client import Client
from specd.cli.formatting import report_lines
from specd.cli.progress import transfer
from specd.cli.sync_client import DaemonRefused, Json
from specd.cli.terminal_output import Screen
from specd.errors import InvalidRequest, SpecdError

T = TypeVar("T")

#: Without any of these in its GGUF, an answer would run for ten contexts.
_END_TOKENS: Final = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
#: Long enough for an answer; ten contexts would take hours.
_MAX_TOKENS: Final = 2048
_KIND_OF_CAPABILITY: Final = {"vision": ("png", "jpg", "jpeg", "webp"), "audio": ("wav",)}
_NUM_PREDICT: Final = re.compile(r"^num_predict\s", re.MULTILINE)


@dataclass(slots=True)
class PartialAnswer:
    """The part of an answer that has arrived so far."""

    text: str = ""
    thinking: str = ""

    def message(self) -> Json:
        thinking = {"thinking": self.thinking} if self.thinking else {}
        return {"role": "assistant", "content": self.text} | thinking


@dataclass
class Conversation:
    """A conversation with one model.

    options, format, think, keep_alive: as in the API; None leaves the choice to the daemon.
    system: replaces the model's system prompt unless it is empty.  messages: the turns so far.
    shown: the answer of `/api/show` for the model.
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
        """Load the model's details; pull the model first if it is missing."""
        try:
            self.shown = await self._fetch_model_info(self.model)
        except DaemonRefused as error:
            if error.status != 404:
                raise
            notes = self.screen.notes
            await transfer(self.client, notes, "pull", self.model, insecure=insecure)
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
        """Switch to another local model and drop the messages.  An error changes nothing."""
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
        """Create a model from this one, with the options, the system prompt and all messages."""
        body: Json = {"model": name, "from": self.model}
        if self.options:
            body["parameters"] = self.options
        if self.system:
            body["system"] = self.system
        if self.messages:
            messages = [*(self.shown.get("messages") or ()), *self.messages]
            body["messages"] = [{key: m[key] for key in ("role", "content")} for m in messages]
        async with aclosing(self.client.progress("/api/create", body)) as steps:
            async for _ in steps:
                pass

    async def answer(self, prompt: str) -> None:
        """Answer one prompt without a chat history."""
        text, images = self._with_images(prompt)
        final = await self._stream("/api/generate", {"prompt": text, **images}, PartialAnswer())
        self.screen.say()
        self._report_truncation(final)
        self._report(final)

    async def say(self, text: str) -> None:
        """Run one turn.  Ctrl-C ends it, and the text so far becomes the answer."""
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
        """Return the longest answer, in tokens, for a model without an end token; else None."""
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
            # Only for this answer: a saved model keeps what the user has set.
            fields["options"] = {**self.options, "num_predict": limit}
        return fields | {name: value for name, value in asked.items() if value is not None}

    async def _stream(self, path: str, body: Json, partial: PartialAnswer) -> Json:
        """Print the answer as it arrives, and return the final object."""
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
    """Return the result of `work`; Ctrl-C cancels only `work` and raises CancelledError here."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# --------------------------------------------------------------------------- images and audio


def extract_files(text: str, capabilities: Collection[str]) -> tuple[str, list[Path]]:
    """Return the text without the paths of files that this model can read, and these files.

    A path must contain a slash, so that a plain file name stays text.  Blanks are escaped, or the
    path is quoted, as shells and terminals do it.  A path without a file stays text.
    """
    endings = [e for sense, es in _KIND_OF_CAPABILITY.items() if sense in capabilities for e in es]
    if not endings:
        return text, []
    ending = rf"\.(?i:{'|'.join(endings)})"
    pattern = rf"""'([^'\n]+{ending})'|"([^"\n]+{ending})"|((?:\\.|[^\s'"\\])+{ending})(?!\w)"""
    found: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        quoted = match[1] or match[2]
        path = quoted or re.sub(r"\\(.)", r"\1", match[3])
        if "/" not in path or not (file := _expand_path(path)):
            return match[0]
        found.append(file)
        return ""

    left = re.sub(pattern, replace, text)
    return (left.strip(), found) if found else (text, [])


def encode_file(file: Path) -> str:
    """Return the file's content as base64, for the field `images`.  Raises InvalidRequest."""
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror or error}") from error


def _expand_path(path: str) -> Path | None:
    try:
        file = Path(path).expanduser()
        return file if file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # path too long, unknown ~user, or a NUL byte
        return None
