"""Rules that name drafters for a target, and which of them is closest to a name.

A rule's patterns are model names with `*` and `?`, compared with whole short names ignoring case;
the rule with the most letters outside of wildcards wins.
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
    """targets, drafters: patterns of short names; a drafter that starts with / or ~ is a file.

    drafters are in order of preference; none at all forbids drafting for the target.
    origin: user or registry.  reason: words for the user, where there is no drafter to be had.
    pull: names that can be pulled, the best first.  expected: published gain by task.
    draft_length: where a controller starts by what is published, and what no draft exceeds.
    file: where it is written; None for the registry.  won: the pattern that matched, once one did.
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
    def said(self) -> str:
        """What decided, for the user: "registry: llama3.3:70b*"."""
        where = shorten_home(self.file) if self.file is not None else self.origin
        return f"{where}: {self.winning_pattern or self.targets[0]}"

    def weight(self, target: str) -> int:
        """How closely the rule is about that target: −1 not at all, more is closer."""
        return self._closest_pattern(target)[0]

    def about(self, target: str) -> Rule:
        """The same, knowing which of its patterns is the closest to the target."""
        return replace(self, winning_pattern=self._closest_pattern(target)[1])

    def _closest_pattern(self, target: str) -> tuple[int, str]:
        matching = ((n_literal_letters(p), p) for p in self.targets if matches(p, target))
        return max(matching, key=lambda weighed: weighed[0], default=(-1, ""))


class RuleBook(Protocol):
    """What pairs ask for rules; target: a short name with its tag."""

    def rule_for(self, target: str) -> Rule | None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The user's rules go before the machine's, these before the packaged ones.

    Each file's are in its order.
    """

    user: tuple[Rule, ...] = ()
    packaged: tuple[Rule, ...] = ()
    machine: tuple[Rule, ...] = ()

    def rule_for(self, target: str) -> Rule | None:
        """target: a short name with its tag."""
        for rules in (self.user, self.machine, self.packaged):
            if rule := _closest(rules, target):
                return rule.about(target)
        return None


def n_literal_letters(pattern: str) -> int:
    """How many of a pattern's letters stand for themselves."""
    return sum(letter not in WILDCARDS for letter in pattern)


def matches(pattern: str, name: str) -> bool:
    """Whether a short name fits a pattern; a pattern without a tag means `:latest`."""
    return _expression(pattern).match(name) is not None


def key_of(pattern: str) -> str:
    """Equal for patterns that match the same names."""
    return _whole(pattern).lower()


def is_file(drafter: str) -> bool:
    """A GGUF by its path, not a model of the store."""
    return drafter.startswith(("/", "~"))


def has_wildcards(pattern: str) -> bool:
    return any(letter in WILDCARDS for letter in pattern)


def shorten_home(path: Path) -> str:
    """The path with `~` for the user's home."""
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
    """Of equally close ones the first."""
    weighed = [(rule.weight(target), rule) for rule in rules]
    weight, rule = max(weighed, key=lambda pair: pair[0], default=(-1, None))
    return rule if weight >= 0 else None
