"""Run one prompt, an embedding or a chat for `specd run`, with the slash commands of a chat."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final

from specd.cli.conversation import Conversation, extract_files
from specd.cli.create_body import read_parameter
from specd.cli.keyboard import FENCE, HISTORY_FILE, Keyboard, read_message
from specd.cli.run import LEVELS
from specd.cli.show import sections
from specd.cli.sync_client import Json
from specd.errors import InvalidRequest, SpecdError
from specd.settings import Settings

Rows = tuple[tuple[str, str], ...]
_COMMANDS: Final[Rows] = (
    ("/set ...", "change a setting of this session (/? set)"),
    ("/show ...", "show details of the model (/? show)"),
    ("/load MODEL", "switch to another model; this drops the conversation"),
    ("/save NAME", "create a model with these settings and this conversation"),
    ("/clear", "drop the conversation"),
    ("/bye", "leave"),
    ("/?, /help", "this list"),
    ("/? shortcuts", "keys"),
    (FENCE, "start or end a message of several lines"),
)
_SET: Final[Rows] = (
    ("/set parameter NAME VALUE", "set an option of the model, e.g. temperature"),
    ("/set system TEXT", f"set the system prompt; {FENCE} for several lines"),
    ("/set format json", "answers in JSON"),
    ("/set noformat", "answers in any form"),
    ("/set think [LEVEL]", f"think before answering: {', '.join(LEVELS)}"),
    ("/set nothink", "answer at once"),
    ("/set verbose", "print speed and drafting statistics"),
    ("/set quiet", "do not print statistics"),
    ("/set wordwrap", "wrap lines at words"),
    ("/set nowordwrap", "do not wrap lines"),
    ("/set history", "keep the input history"),
    ("/set nohistory", "do not keep the input history"),
)
_SHOW: Final[Rows] = (
    ("/show info", "the model, in short"),
    ("/show license", "its licences"),
    ("/show modelfile", "its Modelfile"),
    ("/show parameters", "its parameters, and those of this session"),
    ("/show system", "the system prompt"),
    ("/show template", "its template"),
)
_SHORTCUTS: Final[Rows] = (
    ("Ctrl-A, Ctrl-E", "to the beginning, the end of the line"),
    ("Alt-B, Alt-F", "a word back, a word on"),
    ("Ctrl-K, Ctrl-U", "delete to the end, to the beginning"),
    ("Ctrl-W", "delete the word before the cursor"),
    ("Up, Down, Ctrl-R", "what was typed earlier"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-C", "stop an answer, drop a line"),
    ("Ctrl-D", "leave"),
)
_HELP: Final = {"": _COMMANDS, "set": _SET, "show": _SHOW, "shortcuts": _SHORTCUTS}
_PARTS: Final = ("license", "modelfile", "template")


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


class SlashCommands:
    """The slash commands of a conversation.  `remembers` of the keyboard is its history switch."""

    def __init__(self, conversation: Conversation, keyboard: Keyboard | None = None) -> None:
        self._talk = conversation
        self._keyboard = keyboard
        self._say = conversation.screen.say
        self._acts: dict[str, Callable[[str], Awaitable[None]]] = {
            "/clear": self._clear,
            "/load": self._load,
            "/save": self._save,
            "/set": self._set,
            "/show": self._show,
            "/?": self._help,
            "/help": self._help,
        }

    async def execute(self, line: str) -> bool:
        """Run the line's command, or send it to the model; return False to end the session."""
        name, rest = ((*line.split(maxsplit=1), "", ""))[:2]
        if name in {"/bye", "/exit"}:
            return False
        if not name:
            return True
        if not name.startswith("/") or self._is_file(line):
            await self._talk.say(line)
        elif act := self._acts.get(name):
            try:
                await act(rest)
            except SpecdError as error:
                self._say(f"Error: {error}")
        else:
            self._say(f"{name} is not a command; /? lists them.")
        return True

    def _is_file(self, line: str) -> bool:
        """Return whether the line starts with the path of an image, and is a message."""
        left, files = extract_files(line, self._talk.capabilities)
        return bool(files) and not left.startswith(line.split(maxsplit=1)[0])

    async def _clear(self, _rest: str) -> None:
        self._talk.messages.clear()
        self._say("The conversation is dropped.")

    async def _load(self, model: str) -> None:
        if not model:
            raise InvalidRequest("/load needs the name of a model")
        await self._talk.change_model(model)
        self._say(f"{model} is loaded.")

    async def _save(self, name: str) -> None:
        if not name:
            raise InvalidRequest("/save needs a name for the new model")
        await self._talk.save(name)
        self._say(f"Saved as '{name}'.")
        if any("images" in message for message in self._talk.messages):
            self._say("Images were not saved.")

    async def _help(self, topic: str) -> None:
        topic = topic.removeprefix("/")
        rows = _HELP.get("shortcuts" if topic == "keys" else topic, _COMMANDS)
        width = max(len(left) for left, _ in rows) + 2
        for left, right in rows:
            self._say(f"  {left:<{width}}{right}")

    # --------------------------------------------------------------------------------- set

    async def _set(self, rest: str) -> None:
        name, value = ((*rest.split(maxsplit=1), "", ""))[:2]
        match name:
            case "parameter":
                self._set_parameter(value)
            case "system":
                self._set_system(value)
            case "format" if value != "json":
                raise InvalidRequest("the format is json; /set noformat resets it")
            case "format" | "noformat":
                self._talk.format = value or None
            case "think" | "nothink":
                self._set_think(name, value)
            case "verbose" | "quiet":
                self._talk.verbose = name == "verbose"
            case "wordwrap" | "nowordwrap":
                self._talk.screen.wraps = name == "wordwrap"
            case "history" | "nohistory":
                if self._keyboard is not None:
                    self._keyboard.remembers = name == "history"
            case _:
                await self._help("set")
                return
        self._say(f"{rest} is set." if name != "system" else "The system prompt is set.")

    def _set_parameter(self, rest: str) -> None:
        name, *texts = rest.split() or [""]
        if not texts:
            raise InvalidRequest("/set parameter needs a name and a value")
        # Only `stop` can be a list.
        values = [read_parameter(name, text) for text in texts]
        self._talk.options[name] = values if name == "stop" else values[-1]

    def _set_system(self, text: str) -> None:
        if not text.strip():
            raise InvalidRequest("/set system needs a text")
        self._talk.system = text

    def _set_think(self, name: str, level: str) -> None:
        if level and level not in LEVELS:
            raise InvalidRequest(f"the thinking level must be one of {', '.join(LEVELS)}")
        self._talk.think = level or name == "think"
        if name == "think" and "thinking" not in self._talk.capabilities:
            self._say(f"Note: {self._talk.model} does not support thinking.")

    # -------------------------------------------------------------------------------- show

    async def _show(self, part: str) -> None:
        shown = self._talk.shown
        match part:
            case "info":
                self._show_info()
            case "parameters":
                self._show_parameters()
            case "system":
                self._say(self._talk.system or shown.get("system") or "There is no system prompt.")
            case _ if part in _PARTS:
                self._say(shown.get(part) or f"There is no {part}.")
            case _:
                await self._help("show")

    def _show_info(self) -> None:
        for title, lines in sections(self._talk.shown):
            self._say(f"  {title}")
            for line in lines:
                self._say(f"    {line}")
            self._say()

    def _show_parameters(self) -> None:
        self._say("Of the model:")
        self._say(self._talk.shown.get("parameters") or "  none")
        self._say()
        self._say("Of this session:")
        for name, value in self._talk.options.items():
            self._say(f"{name:<30} {value}")
        if not self._talk.options:
            self._say("  none")
