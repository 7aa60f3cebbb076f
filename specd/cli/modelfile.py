"""Parse Modelfiles as Ollama's client does: text → commands, in order.

    line    = command blank value / "#" anything / empty
    command = FROM / LICENSE / TEMPLATE / SYSTEM / ADAPTER / DRAFT / RENDERER / PARSER / PARAMETER
              / MESSAGE / REQUIRES, in any case
    value   = text to the end of the line / text in single or triple double quotes

Quoted text may contain line ends and has no escapes; the closing quotes must end the line.  A
PARAMETER's value begins with its name, a MESSAGE's with its role.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from specd.errors import InvalidRequest

_COMMANDS: Final = frozenset(
    (
        *("from", "license", "template", "system", "adapter", "draft"),
        *("renderer", "parser", "parameter", "message", "requires"),
    )
)
_ROLES: Final = frozenset(("system", "user", "assistant"))
_UNKNOWN_COMMAND: Final = (
    'command must be one of "from", "license", "template", "system", "adapter", "draft",'
    ' "renderer", "parser", "parameter", "message", or "requires"'
)
_UNKNOWN_ROLE: Final = 'message role must be one of "system", "user", or "assistant"'
_BLANKS: Final = " \t"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a Modelfile.

    name: lower case.  key: a PARAMETER's name or a MESSAGE's role, else "".
    where: the file and the command's first line, as in "Modelfile:3".
    """

    name: str
    value: str
    key: str = ""
    location: str = field(default="", compare=False)

    def error(self, sentence: str) -> InvalidRequest:
        """Return the error with the command's place in the file."""
        return InvalidRequest(f"{self.location}: {sentence}" if self.location else sentence)


def decode(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark; invalid bytes become U+FFFD."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return data.decode("utf-8", "replace")


def parse(text: str, file: str = "Modelfile") -> list[Command]:
    """Return the commands in order, at least one of them FROM.

    file: its name in errors.  Raises InvalidRequest, with file and line, in Ollama's words.
    """
    commands = list(_commands(text.replace("\r\n", "\n").replace("\r", "\n"), file))
    if not any(command.name == "from" for command in commands):
        raise InvalidRequest(f"{file}: no FROM line")
    return commands


def _commands(text: str, file: str) -> Iterator[Command]:
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        rest = line.lstrip(_BLANKS)
        if not rest or rest.startswith("#"):
            continue
        word = re.match(r"[A-Za-z]*", rest)
        name = word[0].lower() if word else ""
        started_value = Command(name, "", location=f"{file}:{number}")
        if name not in _COMMANDS or rest[len(name) :][:1] not in _BLANKS:
            raise started_value.error(_UNKNOWN_COMMAND)
        key, value = _key(started_value, rest[len(name) :])
        while (inner := _unquote(_printable(value).strip())) is None:
            if (following := next(lines, None)) is None:
                raise started_value.error(
                    f"unexpected EOF: the quotes that {name.upper()} opens are not closed at the"
                    " end of a line"
                )
            value += "\n" + following[1]
        yield Command(name, inner, key, started_value.location)


def _key(started_value: Command, rest: str) -> tuple[str, str]:
    """Return a PARAMETER's name or a MESSAGE's role, and the text after it."""
    has_key = started_value.name in {"parameter", "message"}
    key, value = (*re.split(r"[ \t]", rest.lstrip(_BLANKS), maxsplit=1), "")[:2]
    if started_value.name == "message" and key and key not in _ROLES:
        raise started_value.error(_UNKNOWN_ROLE)
    if not (value if has_key else rest).strip():
        raise started_value.error(f"unexpected EOF: {started_value.name.upper()} has no value")
    return (key, value) if has_key else ("", rest)


def _unquote(value: str) -> str | None:
    """Return the text without its quotes, or None if the closing quotes have not come yet."""
    for quotes in ('"""', '"'):
        if value.startswith(quotes):
            if len(value) >= 2 * len(quotes) and value.endswith(quotes):
                return value[len(quotes) : -len(quotes)]
            return None
    return value


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
