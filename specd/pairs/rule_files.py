"""The files that rules are read from, and what may stand in them: docs/pairs.md shows the format.

A user's file goes before the machine's, that before `configs/pairs.toml`.
"""

from __future__ import annotations

import logging
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from specd.errors import BadSetting
from specd.pairs import validation_errors
from specd.pairs.rules import PACKAGED, USER, Rule, Rules, has_wildcards, is_file
from specd.settings import own_config_dir
from specd.store import safe_open

log = logging.getLogger(__name__)

PAIRS_FILE: Final = "pairs.toml"
MACHINE_FILE: Final = Path("/etc/specd") / PAIRS_FILE
#: Far above what a person writes: more is damage.
_MAX_BYTES: Final = 4 * 2**20
#: No draft is ever longer (the controller's own bound).
MAX_DRAFT: Final = 16


# --------------------------------------------------------------------------- the format

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Gain = Annotated[float, msgspec.Meta(gt=0, le=100)]
_Speed = Annotated[float, msgspec.Meta(gt=0)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFT)]
#: `any`: the source does not say what was asked.
Task = Literal["code", "chat", "prose", "any"]


class MeasuredSpeedup(msgspec.Struct, forbid_unknown_fields=True):
    """One published measurement, in tokens/s."""

    target: _Text
    drafter: _Text
    hardware: _Text
    workload: _Text
    plain_tokens_per_s: _Speed
    tokens_per_s: _Speed
    source: _Text


class PairTable(msgspec.Struct, forbid_unknown_fields=True):
    """A `[[pair]]`."""

    target: _Text | Annotated[list[_Text], msgspec.Meta(min_length=1)]
    drafters: list[_Text] = []
    reason: str = ""
    pull: list[_Text] | None = None
    expected: dict[Task, _Gain] = {}
    draft_length: tuple[_Length, _Length] | None = None
    source: str = ""
    measured: list[MeasuredSpeedup] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    pair: list[PairTable] = []


# --------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFilePaths:
    """Where rules are looked for.

    named: the user's word for a file, which must be there then.  own: in its place, the file of
    the user's configuration.  machine: the administrator's.
    """

    named: Path | None = None
    own: Path | None = None
    machine: Path | None = None

    @property
    def user(self) -> Path | None:
        return self.named or self.own


def default_rule_paths(named: Path | None = None) -> RuleFilePaths:
    """named: the setting SPECD_PAIRS."""
    folder = own_config_dir()
    own = folder / PAIRS_FILE if folder is not None else None
    return RuleFilePaths(named=named, own=own, machine=MACHINE_FILE)


class RuleFiles:
    """The rules as the files have them now: each lookup sees whether one has changed.

    Raises BadSetting, naming file and line or field, for what is wrong at first.  What is wrong
    later is a warning, and the last good rules of that file stay in force.
    serves: what is wrong at first is a warning, too, but in a file that the user has named: a
    service is not down for a file that it can do without.
    """

    def __init__(self, places: RuleFilePaths, *, serves: bool = False) -> None:
        self.places = places
        self._user, self._machine = _opened(places, serves=serves)
        self._packaged = read_rules(packaged_file(), PACKAGED)
        self._answered = self.rules
        self._answers: dict[str, Rule | None] = {}

    def rule_for(self, target: str) -> Rule | None:
        """target: a short name with its tag.  Asked at every request, so answers are kept."""
        rules = self.rules
        if rules.user is not self._answered.user or rules.machine is not self._answered.machine:
            self._answered, self._answers = rules, {}
        if target not in self._answers:
            self._answers[target] = rules.rule_for(target)
        return self._answers[target]

    def read_again(self) -> None:
        """Whether or not they look changed.  Raises BadSetting; then the rules stay as they are."""
        self._user, self._machine = _opened(self.places, serves=False)

    @property
    def rules(self) -> Rules:
        return Rules(
            user=self._user.rules(), machine=self._machine.rules(), packaged=self._packaged
        )


def load_rules(named: Path | None = None, *, serves: bool = False) -> RuleFiles:
    """From the usual places; raises BadSetting."""
    return RuleFiles(default_rule_paths(named), serves=serves)


_Identity = tuple[int, int, int]


class _RuleFile:
    """One file of a user's or of the machine's.

    required: its absence is an error.  spared: it has no rules where it is wrong at first.
    """

    def __init__(self, path: Path | None, *, required: bool = False, spared: bool = False) -> None:
        self._path = path
        self._required = required
        self._identity = self._look()
        try:
            self._rules = self._read(self._identity)
        except BadSetting as error:
            if not spared:
                raise
            self._rules = ()
            log.warning("%s; till that is put right there are no rules from it", error)

    def rules(self) -> tuple[Rule, ...]:
        identity = self._look()
        if identity != self._identity:
            self._identity = identity  # first, so that of several threads one warns
            try:
                self._rules = self._read(identity)
            except BadSetting as error:
                log.warning("%s; the rules read from it before stay in force", error)
            else:
                log.info("read the pairs file %s again", self._path)
        return self._rules

    def _look(self) -> _Identity | None:
        """None where there is no file, or none that this user may see."""
        try:
            seen = self._path.stat() if self._path is not None else None
        except OSError:
            seen = None
        return (seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen is not None else None

    def _read(self, identity: _Identity | None) -> tuple[Rule, ...]:
        if self._path is None or (identity is None and not self._required):
            return ()
        if identity is None and not self._path.exists():
            raise BadSetting(
                f"SPECD_PAIRS names {self._path}, which is not there; `specd pairs add` makes it"
            )
        return read_rules(self._path, USER)


def _opened(places: RuleFilePaths, *, serves: bool) -> tuple[_RuleFile, _RuleFile]:
    """The user's and the machine's.  Raises BadSetting."""
    named = places.named is not None
    user = _RuleFile(places.user, required=named, spared=serves and not named)
    return user, _RuleFile(places.machine, spared=serves)


def packaged_file() -> Path:
    """`configs/pairs.toml`: inside the package when installed, beside it in a checkout."""
    package = Path(str(resources.files("specd")))
    inside = package / "configs" / PAIRS_FILE
    return inside if inside.is_file() else package.parent / "configs" / PAIRS_FILE


def read_rules(path: Path, origin: str) -> tuple[Rule, ...]:
    """Raises BadSetting."""
    return parse_rules(read_text(path), path, origin)


def parse_rules(text: str, path: Path, origin: str) -> tuple[Rule, ...]:
    """path: what the text is, or is to be, the content of."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers too long, tables too deep
        raise BadSetting(f"the pairs file {path} is not TOML: {error}") from error
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        said = validation_errors.describe_field_error(str(error), document)
        raise BadSetting(f"the pairs file {path} is wrong: {said}") from error
    return tuple(
        _rule(entry, origin, path, validation_errors.pair_label(i, document))
        for i, entry in enumerate(file.pair)
    )


def _rule(entry: PairTable, origin: str, path: Path, pair: str) -> Rule:
    targets = [entry.target] if isinstance(entry.target, str) else entry.target
    pull = entry.pull
    if pull is None:
        pull = [name for name in entry.drafters if not (has_wildcards(name) or is_file(name))]
    if wrong := _wrong(entry, [*targets, *entry.drafters, *pull], pull):
        raise BadSetting(f"the pairs file {path} is wrong: {pair}: {wrong}")
    return Rule(
        targets=tuple(targets),
        drafters=tuple(entry.drafters),
        origin=origin,
        reason=entry.reason,
        pull=tuple(pull),
        expected={str(task): gain for task, gain in entry.expected.items()},
        draft_length=entry.draft_length,
        source=entry.source,
        file=path if origin == USER else None,
    )


def _wrong(entry: PairTable, names: list[str], pull: list[str]) -> str:
    """What the types do not say; "" where all is well."""
    if not all(name.strip() for name in names):
        return "a name is empty"
    for name in pull:
        if has_wildcards(name) or is_file(name):
            return f"`pull` has {name}, which cannot be pulled"
    if entry.draft_length is not None and entry.draft_length[0] > entry.draft_length[1]:
        return "`draft_length` begins above its end"
    return ""


def read_text(path: Path) -> str:
    """Raises BadSetting."""
    try:
        return safe_open.read(path, _MAX_BYTES).decode().replace("\r\n", "\n")
    except OSError as error:
        raise BadSetting(f"cannot read the pairs file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"the pairs file {path} is not UTF-8: {error}") from error
