"""Texts of systemd's: what `systemctl show` says, and what stands in units and their files.

After systemd.exec(5) and systemd.syntax(7); settings/env_file.py reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_WORD = re.compile(r"""\$?"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)'|(\S+)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
}  # fmt: skip
_FILE_LINE = re.compile(r"(.*?) \(ignore_errors=(yes|no)\)")


def shown_environment(text: str) -> dict[str, str]:
    """The property Environment, as `systemctl show` says it: words, quoted where they need it."""
    words = [plain or _unescaped(quoted or posix) for quoted, posix, plain in _WORD.findall(text)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def shown_files(lines: Iterable[str]) -> list[Path]:
    """The property EnvironmentFiles, a line each."""
    return [Path(found[1]) for line in lines if (found := _FILE_LINE.fullmatch(line.strip()))]


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        letter = found[1]
        if len(letter) == 3:
            return chr(int(letter[1:], 16) if letter[0] == "x" else int(letter, 8))
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(one, text)


def environment_line(name: str, value: str) -> str:
    """`Environment="..."` of a unit; `%` begins a specifier there, and is doubled."""
    text = f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{text.replace(chr(10), chr(92) + "n")}"'


def path_words(path: str | Path) -> str:
    """A path in a unit: blanks and specifiers escaped."""
    text = str(path).replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    return f'"{text}"' if re.search(r"\s", text) else text


def env_file_text(variables: Mapping[str, str]) -> str:
    """A file for EnvironmentFile=."""
    quoted = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in variables.items()}
    return "".join(f'{name}="{value}"\n' for name, value in quoted.items())
