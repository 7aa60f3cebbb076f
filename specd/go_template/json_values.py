"""Values that templates print as JSON, such as Ollama's tools and arguments."""

from __future__ import annotations

from specd.go_template.json_text import json_text
from specd.go_template.values import Struct


class JsonMap(dict[str, object]):
    def go_string(self) -> str:
        return json_text(self)


class JsonList(list[object]):
    """List that prints as JSON; an empty one is Go's nil slice, `null`."""

    def go_string(self) -> str:
        return json_text(self) if self else "null"


class JsonStruct(Struct):
    __slots__ = ()

    def go_string(self) -> str:
        return json_text(self)
