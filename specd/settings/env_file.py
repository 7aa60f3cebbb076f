"""Parser for environment files in systemd's format (`EnvironmentFile=`, env-file.c).

No library reads this format: a `#` within a value belongs to the value, backslashes escape outside
of quotes too, and `export` is not a keyword.  A backslash at the end of a comment does not continue
it, as since systemd 254.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from pathlib import Path
from typing import Final

from specd.errors import BadSetting

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK: Final = " \t\n\r"
#: Characters that a backslash escapes within double quotes.
_ESCAPED: Final = '"\\`$'


class _State(Enum):
    LINE = auto()
    COMMENT = auto()
    KEY = auto()
    VALUE = auto()  # before its first character, or after a closing quote
    BARE = auto()
    SINGLE = auto()
    DOUBLE = auto()


def read_env_file(path: Path) -> dict[str, str]:
    """Return the file's variables; none if it does not exist.

    Raises BadSetting if it cannot be read.
    """
    try:
        return parse_env(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"{path} is not UTF-8: {error}") from error


def parse_env(text: str) -> dict[str, str]:
    """Return the variables of an environment file; skip invalid lines, as systemd does."""
    return {key: value for key, value in _EnvFileParser(text).pairs() if _NAME.fullmatch(key)}


class _EnvFileParser:
    """A state machine that takes one character at a time, like systemd's parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = _State.LINE
        self._key: list[str] = []
        self._value: list[str] = []
        self._n_kept = 0  # characters of the value before its trailing blanks
        self._pairs: list[tuple[str, str]] = []

    def pairs(self) -> list[tuple[str, str]]:
        characters = iter(self._text)
        for character in characters:
            if character == "\\" and self._at in {_State.VALUE, _State.BARE, _State.DOUBLE}:
                self._escape(next(characters, ""))
            else:
                self._take(character)
        if self._at not in {_State.LINE, _State.KEY, _State.COMMENT}:
            self._end()
        return self._pairs

    def _escape(self, character: str) -> None:
        """Take the character after a backslash; a line feed joins two lines."""
        if self._at is _State.DOUBLE and character not in {*_ESCAPED, "\n", ""}:
            self._value.append("\\")
        if character != "\n":
            self._value.append(character)
        if self._at is _State.VALUE:
            self._at = _State.BARE
        self._n_kept = len(self._value)

    def _take(self, character: str) -> None:
        match self._at:
            case _State.LINE if character not in _BLANK:
                self._at = _State.COMMENT if character in "#;" else _State.KEY
                self._key = [character]
            case _State.KEY if character == "=":
                self._at, self._value, self._n_kept = _State.VALUE, [], 0
            case _State.KEY:
                self._key.append(character)
            case _State.VALUE if character in "'\"":
                self._at = _State.SINGLE if character == "'" else _State.DOUBLE
            case _State.SINGLE | _State.DOUBLE:
                self._quoted(character)
            case _State.VALUE | _State.BARE:
                self._bare(character)
            case _:
                pass
        if character == "\n" and self._at not in {_State.SINGLE, _State.DOUBLE}:
            self._line_ends()

    def _quoted(self, character: str) -> None:
        if character == ("'" if self._at is _State.SINGLE else '"'):
            self._at = _State.VALUE
            return
        self._value.append(character)
        self._n_kept = len(self._value)

    def _bare(self, character: str) -> None:
        if self._at is _State.VALUE and character in _BLANK:
            return
        self._at = _State.BARE
        self._value.append(character)
        if character not in _BLANK:
            self._n_kept = len(self._value)

    def _line_ends(self) -> None:
        if self._at in {_State.VALUE, _State.BARE}:
            self._end()
        self._at = _State.LINE

    def _end(self) -> None:
        value = "".join(self._value[: self._n_kept])
        self._pairs.append(("".join(self._key).rstrip(_BLANK), value))
