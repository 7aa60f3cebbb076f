"""Read and write systemd's texts: `systemctl show`, units and environment files.

Source: systemd.exec(5) and systemd.syntax(7); settings/env_file.py reads environment files.
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
#: C0, DEL and C1; text direction and invisible characters; surrogates (a file name that is
#: not UTF-8, which systemd does not read); line and paragraph separators.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def parse_environment(text: str) -> dict[str, str]:
    """Return the property Environment of `systemctl show`, whose words may be quoted."""
    words = [plain or _unescaped(quoted or posix) for quoted, posix, plain in _WORD.findall(text)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def parse_environment_files(lines: Iterable[str]) -> tuple[Path, ...]:
    """Return the paths of the property EnvironmentFiles, one per line."""
    found = (_FILE_LINE.fullmatch(line.strip()) for line in lines)
    return tuple(Path(one[1]) for one in found if one)


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        letter = found[1]
        if len(letter) == 3:
            return chr(int(letter[1:], 16) if letter[0] == "x" else int(letter, 8))
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(one, text)


def escape_unprintable(text: str) -> str:
    """Return the text for a terminal, with control and invisible characters escaped."""
    return "".join(
        character.encode("unicode_escape").decode() if _is_unprintable(character) else character
        for character in text
    )


def check_text(text: str, what: str = "") -> str:
    """Return the text if it can be part of a systemd file.  what: its name in the error.

    Raises InstallError: a user chooses a folder's name, and a line end in it would start a new line
    in root's unit.
    """
    if any(_is_unprintable(character) for character in text):
        raise InstallError(
            f"{what or escape_unprintable(text)}:"
            " it contains a control or invisible character;"
            " specd writes none into a file of systemd's.  Take it out, and try again"
        )
    return text


def _is_unprintable(character: str) -> bool:
    return category(character) in _UNPRINTABLE


def environment_line(name: str, value: str) -> str:
    """Return `Environment="..."` for a unit.  Raises InstallError as check_text() does."""
    what = f"the variable {escape_unprintable(name)}"
    return f"Environment={_quoted(check_text(f'{name}={value}', what))}"


def setting_line(name: str, value: str) -> str:
    """Return a line for a single value that is not quoted, e.g. `User=`."""
    return f"{name}={check_text(value, f'{name}=').replace('%', '%%')}"


def path_words(path: str | Path) -> str:
    """Return a path for a list of paths.  Raises InstallError as check_text() does."""
    return _quoted(check_text(str(path)))


def bind_words(path: str | Path) -> str:
    """Return a path for BindPaths=, with escaped colons.  Raises as check_text() does."""
    return path_words(path).replace(":", "\\:")


def _quoted(text: str) -> str:
    """Return the text in quotes, which `'` requires too, with `%` doubled."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def env_file_text(variables: Mapping[str, str]) -> str:
    """Return the text of an EnvironmentFile=.  Raises InstallError as check_text() does."""
    for name, value in variables.items():
        check_text(f"{name}={value}", f"the variable {escape_unprintable(name)}")
    quoted = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in variables.items()}
    return "".join(f'{name}="{value}"\n' for name, value in quoted.items())
