"""The questions of every program of the client matrix, and its report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

SPEAKER, WRITER = "speaker", "specd-demo"
CITY_SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["city", "village"]},
        "rivers": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["kind", "rivers"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}},
            "required": ["city"],
        },
    },
}


def url() -> str:
    return sys.argv[1]


@dataclass
class Report:
    """chunks: the pieces of one streamed answer.  call: name and arguments of the tool call.

    structured: JSON text.  embedding: how long the vector is; None where the client has none.
    error: the class and the words of what an unknown model raises.
    """

    models: list[str] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    call: list[object] = field(default_factory=list)
    after_call: str | None = None
    structured: str | None = None
    embedding: int | None = None
    error: list[str] = field(default_factory=list)

    def fails(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - which one it is, is the question
            self.error = [type(error).__name__, str(error)]

    def write(self) -> None:
        json.dump(asdict(self), sys.stdout)
