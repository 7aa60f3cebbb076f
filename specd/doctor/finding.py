"""What the doctor says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # it is not there, and need not be
    WARNING = "warning"  # it works, and not as well or as safely as it could
    PROBLEM = "problem"  # something that a user would miss does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """topic: a word or two.  words: what was found, a sentence.  remedy: what to do, "" for OK."""

    level: Level
    topic: str
    words: str
    remedy: str = ""


def ok(topic: str, words: str) -> Finding:
    return Finding(level=Level.OK, topic=topic, words=words)


def absent(topic: str, words: str) -> Finding:
    return Finding(level=Level.ABSENT, topic=topic, words=words)


def warning(topic: str, words: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, topic=topic, words=words, remedy=remedy)


def problem(topic: str, words: str, remedy: str) -> Finding:
    return Finding(level=Level.PROBLEM, topic=topic, words=words, remedy=remedy)
