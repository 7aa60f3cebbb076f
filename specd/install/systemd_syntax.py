"""Texts of systemd's: what `systemctl show` says, and what stands in units and their files.

After systemd.exec(5) and systemd.syntax(7); settings/env_file.py reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from unicodedata import category

from specd.errors import InstallError

_WORD = re.compile(r"""\$?"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)'|(\S+)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
}  # fmt: skip
_FILE_LINE = re.compile(r"(.*?) \(ignore_errors=(yes|no)\)")
#: C0, DEL and C1; directions of writing and what is not seen; half characters (a file name that is
#: not UTF-8, which systemd does not read); ends of lines and of paragraphs.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def parse_environment(text: str) -> dict[str, str]:
    """The property Environment, as `systemctl show` says it: words, quoted where they need it."""
    words = [plain or _unescaped(quoted or posix) for quoted, posix, plain in _WORD.findall(text)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def parse_environment_files(lines: Iterable[str]) -> list[Path]:
    """The property EnvironmentFiles, a line each."""
    return [Path(found[1]) for line in lines if (found := _FILE_LINE.fullmatch(line.strip()))]


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        letter = found[1]
        if len(letter) == 3:
            return chr(int(letter[1:], 16) if letter[0] == "x" else int(letter, 8))
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(one, text)


def escape_unprintable(text: str) -> str:
    """As it may be shown on a terminal: what moves the cursor, or is not seen, is spelled out."""
    return "".join(
        character.encode("unicode_escape").decode() if _is_unseen(character) else character
        for character in text
    )


def check_text(text: str, what: str = "") -> str:
    """The text itself, if it may stand in a file of systemd's.  what: to name in its place.

    Raises InstallError: a folder's name is its owner's to choose, and a line's end in it would
    begin a line of root's unit.
    """
    if any(_is_unseen(character) for character in text):
        raise InstallError(
            f"{what or escape_unprintable(text)}:"
            " a control character, or one that is not seen, is in it;"
            " specd writes none into a file of systemd's.  Take it out, and try again"
        )
    return text


def _is_unseen(character: str) -> bool:
    return category(character) in _UNSEEN


def environment_line(name: str, value: str) -> str:
    """`Environment="..."` of a unit.  Raises InstallError as carried()."""
    what = f"the variable {escape_unprintable(name)}"
    return f"Environment={_quoted(check_text(f'{name}={value}', what))}"


def setting_line(name: str, value: str) -> str:
    """One value that is no list, of a setting that takes quotes as they are: `User=`."""
    return f"{name}={check_text(value, f'{name}=').replace('%', '%%')}"


def path_words(path: str | Path) -> str:
    """A path in a list of paths.  Raises InstallError as carried()."""
    return _quoted(check_text(str(path)))


def bind_words(path: str | Path) -> str:
    """A path in BindPaths=, where a colon would part it from another.  Raises as carried()."""
    return path_words(path).replace(":", "\\:")


def _quoted(text: str) -> str:
    """Always, as `'` begins a quote too; `%` begins a specifier, and is doubled."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def env_file_text(variables: Mapping[str, str]) -> str:
    """A file for EnvironmentFile=.  Raises InstallError as carried()."""
    for name, value in variables.items():
        check_text(f"{name}={value}", f"the variable {escape_unprintable(name)}")
    quoted = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in variables.items()}
    return "".join(f'{name}="{value}"\n' for name, value in quoted.items())
