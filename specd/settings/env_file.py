"""Parser for environment files in systemd's format (`EnvironmentFile=`, env-file.c).

No library reads this format: a `#` within a value belongs to the value, backslashes escape outside
of quotes too, and `export` is not a keyword.  A backslash at the end of a comment does not continue
it, as since systemd 254.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from specd.errors import BadSetting

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK: Final = " \t\n\r"
_SINGLE: Final = r"'([^']*+)(?:'|\Z)"
_DOUBLE: Final = r'"((?:\\(?:.|\Z)|[^"\\])*+)(?:"|\Z)'
_QUOTED: Final = re.compile(f"{_SINGLE}|{_DOUBLE}", re.DOTALL)
#: An assignment, a comment or another line.  A value is a series of quoted texts, then plain text
#: that does not start with a quote, then blanks.  The end of the file closes a quoted text.
_LINE: Final = re.compile(
    rf"""
    [ \t\n\r]*+
    (?: [#;] [^\n]*+
      | (?P<key> [^\n] [^=\n]*+ )
        (?: =
            (?P<quoted> (?: [ \t\r]*+ (?:{_SINGLE}|{_DOUBLE}) )*+ ) [ \t\r]*+
            (?P<plain> (?: [ \t\r]*+ (?: \\(?:.|\Z) | [^ \t\r\n\\] )++ )*+ ) [ \t\r]*+
        )?+
    )?+
    (?: \n | \Z )""",
    re.VERBOSE | re.DOTALL,
)


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
    variables = {}
    for line in _LINE.finditer(text):
        key = (line["key"] or "").rstrip(_BLANK)
        if line["plain"] is not None and _NAME.fullmatch(key):
            variables[key] = _unquote(line["quoted"]) + _unescape(line["plain"], ".")
    return variables


def _unquote(text: str) -> str:
    found = _QUOTED.findall(text)
    return "".join(single or _unescape(double, r'["\\`$]') for single, double in found)


def _unescape(text: str, escaped: str) -> str:
    r"""Remove the backslashes before characters of the pattern `escaped`, and escaped line ends.

    A last backslash, in a text that the end of the file closes, is removed too.
    """
    pattern = rf"\\(?:\n|\Z|({escaped}))"
    return re.sub(pattern, lambda match: match[1] or "", text)
