"""Define the result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    ABSENT = "absent"  # not present, and not needed
    WARNING = "warning"  # works, but not as well or as safely as it could
    PROBLEM = "problem"  # something that a user would miss does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check.

    topic: one or two words.  words: the result in a sentence.  remedy: what to do, "" for OK.
    """

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
