"""Lexer of templates, by the rules of Go's text/template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from specd.go_template.literals import quote

LEFT: Final = "{{"
RIGHT: Final = "}}"
_SPACE: Final = " \t\r\n"
_SPACES_SET: Final = frozenset(_SPACE)
#: The right delimiter, with an optional trim marker (space and minus).
_RIGHT_DELIMITER: Final = re.compile(r"(?:[ \t\r\n]-)?\}\}")
_SPACES: Final = re.compile(r"[ \t\r\n]+")
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
#: Text up to the closing quote, with escapes and without line ends.
_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_CHARACTER: Final = re.compile(r"'(?:[^'\\\n]|\\[^\n])*'")


class Kind(Enum):
    ERROR = auto()
    BOOL = auto()
    CHAR = auto()  # a printable character without a special meaning, such as a comma
    CHARACTER = auto()  # 'x'
    ASSIGN = auto()
    DECLARE = auto()
    EOF = auto()
    FIELD = auto()
    IDENTIFIER = auto()
    LEFT = auto()
    LEFT_PAREN = auto()
    NUMBER = auto()
    PIPE = auto()
    RAW_STRING = auto()
    RIGHT = auto()
    RIGHT_PAREN = auto()
    SPACE = auto()
    STRING = auto()
    TEXT = auto()
    VARIABLE = auto()
    DOT = auto()
    NIL = auto()
    KEYWORD = auto()


_KEYWORDS: Final = (
    *("block", "break", "continue", "define", "else"),
    *("end", "if", "range", "template", "with"),
)
_WORDS: Final = dict.fromkeys(_KEYWORDS, Kind.KEYWORD) | {
    "true": Kind.BOOL,
    "false": Kind.BOOL,
    "nil": Kind.NIL,
    ".": Kind.DOT,
}
_OPERATORS: Final = {"=": Kind.ASSIGN, "|": Kind.PIPE}


@dataclass(frozen=True, slots=True)
class Token:
    """A token.  line: line of its start, from 1."""

    kind: Kind
    pos: int
    text: str
    line: int

    def is_keyword(self, *words: str) -> bool:
        return self.kind is Kind.KEYWORD and self.text in words


class Lexer:
    """Lexer that returns one token at a time; an ERROR is the last one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._line = 1
        self._counted = 0  # position up to which `_line` is counted
        self._inside = False
        self._depth = 0  # open parentheses in the action

    def next(self) -> Token:
        return self._inside_action() if self._inside else self._outside()

    def _token(self, kind: Kind, end: int) -> Token:
        start, self._pos = self._pos, end
        return self._at(kind, start, self._text[start:end])

    def _at(self, kind: Kind, start: int, text: str) -> Token:
        self._line += self._text.count("\n", self._counted, start)
        self._counted = start
        return Token(kind, start, text, self._line)

    def _error(self, message: str, start: int | None = None) -> Token:
        return self._at(Kind.ERROR, self._pos if start is None else start, message)

    # ---------------------------------------------------------------- text

    def _outside(self) -> Token:
        text = self._text
        while True:
            start, delimiter = self._pos, text.find(LEFT, self._pos)
            if delimiter < 0:
                if start == len(text):
                    return self._at(Kind.EOF, start, "EOF")
                return self._token(Kind.TEXT, len(text))
            after = delimiter + len(LEFT)
            trims = text.startswith("-", after) and text[after + 1 : after + 2] in _SPACES_SET
            plain = text[start:delimiter].rstrip(_SPACE) if trims else text[start:delimiter]
            self._pos = delimiter
            if plain:
                return self._at(Kind.TEXT, start, plain)
            if not text.startswith("/*", after + 2 * trims):
                token = self._token(Kind.LEFT, after)
                self._pos += 2 * trims
                self._inside, self._depth = True, 0
                return token
            if error := self._skip_comment(after + 2 * trims):
                return error

    def _skip_comment(self, start: int) -> Token | None:
        end = self._text.find("*/", start + 2)
        if end < 0:
            return self._error("unclosed comment", start)
        closing = _RIGHT_DELIMITER.match(self._text, end + 2)
        if closing is None:
            return self._error("comment ends before closing delimiter", start)
        self._pos = closing.end()
        self._trim(closing)
        return None

    def _trim(self, closing: re.Match[str]) -> None:
        if closing[0] != RIGHT and (spaces := _SPACES.match(self._text, self._pos)):
            self._pos = spaces.end()

    # -------------------------------------------------------------- action

    def _inside_action(self) -> Token:
        closing = _RIGHT_DELIMITER.match(self._text, self._pos)
        if closing is not None:
            if self._depth:
                return self._error("unclosed left paren")
            self._pos = closing.end() - len(RIGHT)
            token = self._token(Kind.RIGHT, closing.end())
            self._trim(closing)
            self._inside = False
            return token
        if self._pos == len(self._text):
            return self._error("unclosed action")
        character = self._text[self._pos]
        if character in _SPACE:
            return self._space()
        if kind := _OPERATORS.get(character):
            return self._token(kind, self._pos + 1)
        if special := self._special(character):
            return special
        if _is_alphanumeric(character):
            return self._word(self._pos)
        if character.isascii() and character.isprintable():
            return self._token(Kind.CHAR, self._pos + 1)
        return self._error(f"unrecognized character in action: {_unicode(character)}")

    def _special(self, character: str) -> Token | None:
        match character:
            case ":" if self._text.startswith(":=", self._pos):
                return self._token(Kind.DECLARE, self._pos + 2)
            case ":":
                return self._error("expected :=")
            case '"' | "'" | "`":
                return self._quote(character)
            case "$":
                return self._word(self._pos + 1)
            case ".":
                following = self._text[self._pos + 1 : self._pos + 2]
                is_number = not following or following in "0123456789"
                return self._number() if is_number else self._word(self._pos + 1)
            case "(" | ")":
                return self._paren(character)
            case _ if character in "+-0123456789":
                return self._number()
        return None

    def _space(self) -> Token:
        spaces = _SPACES.match(self._text, self._pos)
        assert spaces is not None
        end = spaces.end()
        # The last space may belong to a trim marker.
        if _RIGHT_DELIMITER.match(self._text, end - 1):
            end -= 1
        return self._token(Kind.SPACE, end)

    def _paren(self, character: str) -> Token:
        self._depth += 1 if character == "(" else -1
        if self._depth < 0:
            return self._error("unexpected right paren")
        return self._token(Kind.LEFT_PAREN if character == "(" else Kind.RIGHT_PAREN, self._pos + 1)

    def _quote(self, character: str) -> Token:
        if character == "`":
            end = self._text.find("`", self._pos + 1)
            if end < 0:
                return self._error("unterminated raw quoted string")
            return self._token(Kind.RAW_STRING, end + 1)
        pattern, kind, words = {
            '"': (_QUOTED, Kind.STRING, "quoted string"),
            "'": (_CHARACTER, Kind.CHARACTER, "character constant"),
        }[character]
        found = pattern.match(self._text, self._pos)
        return self._token(kind, found.end()) if found else self._error(f"unterminated {words}")

    def _word(self, end: int) -> Token:
        """Return a name, `.Name`, `$name`, or a bare `.` or `$`; its letters follow at `end`."""
        while end < len(self._text) and _is_alphanumeric(self._text[end]):
            end += 1
        if not self._ends_at(end):
            return self._error(f"bad character {_unicode(self._text[end : end + 1])}")
        word = self._text[self._pos : end]
        kind = _WORDS.get(word, Kind.IDENTIFIER)
        if word[0] == "$":
            kind = Kind.VARIABLE
        elif word[0] == "." and len(word) > 1:
            kind = Kind.FIELD
        return self._token(kind, end)

    def _ends_at(self, end: int) -> bool:
        """Return whether a name may end here; `$x+2` is invalid."""
        following = self._text[end : end + 1]
        return not following or following in " \t\r\n.,|:)(" or self._text.startswith(RIGHT, end)

    def _number(self) -> Token:
        end = self._end_of_number(self._pos)
        if self._text[end : end + 1] in {"+", "-"}:
            # Only complex numbers continue like this; they are not supported.
            end = self._end_of_number(end)
        elif not _is_alphanumeric(self._text[end : end + 1]):
            return self._token(Kind.NUMBER, end)
        end += _is_alphanumeric(self._text[end : end + 1])
        return self._error(f"bad number syntax: {quote(self._text[self._pos : end])}")

    def _end_of_number(self, start: int) -> int:
        found = _NUMBER.match(self._text, start)
        return start if found is None else found.end()


def _is_alphanumeric(character: str) -> bool:
    return character == "_" or character.isalpha() or character.isdecimal()


def _unicode(character: str) -> str:
    """Return a character in Go's `%#U` format."""
    if not character:
        return "U+FFFFFFFFFFFFFFFF"  # the end of the text, as Go prints it
    shown = f" '{character}'" if character.isprintable() else ""
    return f"U+{ord(character):04X}{shown}"
