"""The escaping functions of Go templates: html, js and urlquery."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_plus

from specd.go_template.values import encode_utf8

_HTML: Final = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_JS: Final = {
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
    "<": "\\u003C",
    ">": "\\u003E",
    "&": "\\u0026",
    "=": "\\u003D",
}


def html(text: str) -> str:
    return text.translate(_HTML)


def js(text: str) -> str:
    return "".join(_js(char) for char in text)


def _js(char: str) -> str:
    if special := _JS.get(char):
        return special
    if char < " " or (char > "~" and char != "\x7f" and not char.isprintable()):
        return f"\\u{ord(char):04X}"
    return char


def urlquery(text: str) -> str:
    return quote_plus(encode_utf8(text), safe="~")
