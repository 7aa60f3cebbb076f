"""The rules that name a drafter for a target: `configs/pairs.toml`, and the user's own file.

A rule's patterns are model names with `*` and `?`, compared ignoring case; the rule with the most
letters outside of wildcards wins, the user's file goes before the packaged one.  docs/pairs.md
shows the format.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from specd.errors import BadSetting

USER: Final = "user"
PACKAGED: Final = "registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """targets, drafters: patterns of short names; a drafter that starts with / or ~ is a file.

    drafters are in order of preference; none at all forbids drafting for the target.
    origin: user or registry.  reason: the user's words for a rule without drafters.
    """

    targets: tuple[str, ...]
    drafters: tuple[str, ...]
    origin: str
    reason: str = ""

    def weight(self, target: str) -> int:
        """How closely the rule is about that target: −1 not at all, more is closer."""
        matching = (p for p in self.targets if matches(p, target))
        return max((sum(c not in "*?" for c in p) for p in matching), default=-1)


@dataclass(frozen=True, slots=True)
class Rules:
    """user's rules before the packaged ones, each file's in its order."""

    user: tuple[Rule, ...] = ()
    packaged: tuple[Rule, ...] = ()

    def rule_for(self, target: str) -> Rule | None:
        """target: a short name with its tag."""
        return _closest(self.user, target) or _closest(self.packaged, target)


def matches(pattern: str, name: str) -> bool:
    """Whether a short name fits a pattern; a pattern without a tag means `:latest`."""
    if ":" not in pattern.rpartition("/")[2] and "*" not in pattern.rpartition("/")[2][-1:]:
        pattern += ":latest"
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))


def load_rules(user_file: Path | None = None) -> Rules:
    """Read the packaged rules and the user's; raises BadSetting naming file and line or field."""
    return Rules(
        user=read_rules(user_file, USER) if user_file is not None else (),
        packaged=read_rules(packaged_file(), PACKAGED),
    )


def packaged_file() -> Path:
    """`configs/pairs.toml`: inside the package when installed, beside it in a checkout."""
    package = Path(str(resources.files("specd")))
    inside = package / "configs" / "pairs.toml"
    return inside if inside.is_file() else package.parent / "configs" / "pairs.toml"


def read_rules(path: Path, origin: str) -> tuple[Rule, ...]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        file = msgspec.convert(data, _File)
    except OSError as error:
        raise BadSetting(f"cannot read the pairs file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"the pairs file {path} is not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"the pairs file {path} is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise BadSetting(f"the pairs file {path} has a bad field: {error}") from error
    return tuple(_rule(entry, origin, path, i) for i, entry in enumerate(file.pair))


class _Measured(msgspec.Struct, forbid_unknown_fields=True):
    """One published measurement, in tokens/s."""

    target: str
    drafter: str
    hardware: str
    workload: str
    plain_tokens_per_s: float
    tokens_per_s: float
    source: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    target: str | list[str]
    drafters: list[str] = []
    reason: str = ""
    source: str = ""
    measured: list[_Measured] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    pair: list[_Entry] = []


def _rule(entry: _Entry, origin: str, path: Path, index: int) -> Rule:
    targets = [entry.target] if isinstance(entry.target, str) else entry.target
    if not targets or not all([*targets, *entry.drafters]):
        raise BadSetting(
            f"the pairs file {path} has a bad field: an empty name - at `$.pair[{index}]`"
        )
    return Rule(
        targets=tuple(targets),
        drafters=tuple(entry.drafters),
        origin=origin,
        reason=entry.reason,
    )


def _closest(rules: Iterable[Rule], target: str) -> Rule | None:
    weighed = [(rule.weight(target), rule) for rule in rules]
    weight, rule = max(weighed, key=lambda pair: pair[0], default=(-1, None))
    return rule if weight >= 0 else None
