"""Rules that name drafters for targets, and the choice of the closest rule for a name.

A rule's patterns are model names with `*` and `?`.  They must match whole short names, ignoring
case.  The rule with the most letters outside of wildcards is used.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

USER: Final = "user"
PACKAGED: Final = "registry"

WILDCARDS: Final = "*?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of a pairs file.

    targets: patterns of short names.
    drafters: patterns of short names, or files that start with / or ~, in order of preference;
    empty forbids drafting for the target.
    origin: user or registry.  reason: text for the user if there is no drafter.
    pull: names that can be pulled, the best first.  expected: published gain by task.
    draft_length: (published draft length, longest draft), in tokens.
    file: the user's or the machine's file; None for the registry.
    winning_pattern: the pattern that matched the target, "" before a match.
    """

    targets: tuple[str, ...]
    drafters: tuple[str, ...]
    origin: str
    reason: str = ""
    pull: tuple[str, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    draft_length: tuple[int, int] | None = None
    source: str = ""
    file: Path | None = field(default=None, compare=False)
    winning_pattern: str = field(default="", compare=False)

    @property
    def max_draft(self) -> int | None:
        return self.draft_length[1] if self.draft_length is not None else None

    @property
    def label(self) -> str:
        """Origin and pattern for the user, such as "registry: llama3.3:70b*"."""
        where = shorten_home(self.file) if self.file is not None else self.origin
        return f"{where}: {self.winning_pattern or self.targets[0]}"

    def weight(self, target: str) -> int:
        """Return how closely the rule matches the target: −1 not at all, more is closer."""
        return self._closest_pattern(target)[0]

    def about(self, target: str) -> Rule:
        """Return the rule with `winning_pattern` set for the target."""
        return replace(self, winning_pattern=self._closest_pattern(target)[1])

    def _closest_pattern(self, target: str) -> tuple[int, str]:
        matching = ((n_literal_letters(p), p) for p in self.targets if matches(p, target))
        return max(matching, key=lambda weighed: weighed[0], default=(-1, ""))


class RuleBook(Protocol):
    """A source of rules.  target: a short name with its tag."""

    def rule_for(self, target: str) -> Rule | None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of all files, each in the file's order.

    The user's come before the machine's, and these before the packaged ones.
    """

    user: tuple[Rule, ...] = ()
    packaged: tuple[Rule, ...] = ()
    machine: tuple[Rule, ...] = ()

    def rule_for(self, target: str) -> Rule | None:
        """Return the closest rule, or None.  target: a short name with its tag."""
        for rules in (self.user, self.machine, self.packaged):
            if rule := _closest(rules, target):
                return rule.about(target)
        return None


def n_literal_letters(pattern: str) -> int:
    """Return the number of a pattern's letters that are not wildcards."""
    return sum(letter not in WILDCARDS for letter in pattern)


def matches(pattern: str, name: str) -> bool:
    """Return whether a short name matches a pattern; without a tag the pattern means `:latest`."""
    return _expression(pattern).match(name) is not None


def key_of(pattern: str) -> str:
    """Return a key that is equal for patterns that match the same names."""
    return _whole(pattern).lower()


def is_file(drafter: str) -> bool:
    """Return whether the drafter is the path of a GGUF, not a model of the store."""
    return drafter.startswith(("/", "~"))


def has_wildcards(pattern: str) -> bool:
    return any(letter in WILDCARDS for letter in pattern)


def shorten_home(path: Path) -> str:
    """Return the path with `~` for the user's home."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


@lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(_whole(pattern).replace("[", "[[]")), re.IGNORECASE)


def _whole(pattern: str) -> str:
    last = pattern.rpartition("/")[2]
    return pattern if ":" in last or last.endswith("*") else f"{pattern}:latest"


def _closest(rules: Iterable[Rule], target: str) -> Rule | None:
    """Return the closest rule, the first of equally close ones; None if none matches."""
    weighed = [(rule.weight(target), rule) for rule in rules]
    weight, rule = max(weighed, key=lambda pair: pair[0], default=(-1, None))
    return rule if weight >= 0 else None
