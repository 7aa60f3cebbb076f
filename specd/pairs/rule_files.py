"""Read the pairs files with their rules; docs/pairs.md describes the format.

The user's file comes before the machine's, and that before `configs/pairs.toml`.
"""

from __future__ import annotations

import logging
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from specd.errors import BadSetting
from specd.pairs.rules import PACKAGED, USER, Rule, Rules, has_wildcards, is_file
from specd.settings import own_config_dir
from specd.store import safe_files

log = logging.getLogger(__name__)

PAIRS_FILE: Final = "pairs.toml"
MACHINE_FILE: Final = Path("/etc/specd") / PAIRS_FILE
#: Largest valid file, far above what a person writes.
_MAX_BYTES: Final = 4 * 2**20
#: The longest draft: the controller's limit.
MAX_DRAFT: Final = 16


# --------------------------------------------------------------------------- the format

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Gain = Annotated[float, msgspec.Meta(gt=0, le=100)]
_Speed = Annotated[float, msgspec.Meta(gt=0)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFT)]
#: `any`: the source does not name the task.
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
    """A `[[pair]]` table."""

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
    """The paths of the pairs files.

    named: the file that SPECD_PAIRS names, which must exist.
    own: the file in the user's configuration, used if no file is named.
    machine: the administrator's file.
    """

    named: Path | None = None
    own: Path | None = None
    machine: Path | None = None

    @property
    def user(self) -> Path | None:
        return self.named or self.own


def default_rule_paths(named: Path | None = None) -> RuleFilePaths:
    """Return the usual paths.  named: the setting SPECD_PAIRS."""
    folder = own_config_dir()
    own = folder / PAIRS_FILE if folder is not None else None
    return RuleFilePaths(named=named, own=own, machine=MACHINE_FILE)


class RuleFiles:
    """The rules of all pairs files; each lookup checks whether a file has changed.

    The constructor raises BadSetting, with file and line or field, if a file is wrong.  A file that
    becomes wrong later causes a warning, and its last good rules stay in force.

    serves: a wrong file causes only a warning from the start, unless the user has named it, so that
    the service starts without it.
    """

    def __init__(self, places: RuleFilePaths, *, serves: bool = False) -> None:
        self.places = places
        self._user, self._machine = _opened(places, serves=serves)
        self._packaged = read_rules(packaged_file(), PACKAGED)
        self._answered = self.rules
        self._answers: dict[str, Rule | None] = {}

    def rule_for(self, target: str) -> Rule | None:
        """Return the closest rule, cached, or None.  target: a short name with its tag."""
        rules = self.rules
        if rules.user is not self._answered.user or rules.machine is not self._answered.machine:
            self._answered, self._answers = rules, {}
        if target not in self._answers:
            self._answers[target] = rules.rule_for(target)
        return self._answers[target]

    def read_again(self) -> None:
        """Read all files anew, changed or not; raise BadSetting and keep the rules on a fault."""
        self._user, self._machine = _opened(self.places, serves=False)

    @property
    def rules(self) -> Rules:
        return Rules(
            user=self._user.rules(), machine=self._machine.rules(), packaged=self._packaged
        )


def load_rules(named: Path | None = None, *, serves: bool = False) -> RuleFiles:
    """Return the rules of the usual files; raise BadSetting.  Arguments as in `RuleFiles`."""
    return RuleFiles(default_rule_paths(named), serves=serves)


_Identity = tuple[int, int, int]


class _RuleFile:
    """One pairs file of the user or the machine.

    required: its absence is an error.  spared: if it is wrong at first it has no rules, without
    an error.
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
            log.warning("%s; it has no rules until that is corrected", error)

    def rules(self) -> tuple[Rule, ...]:
        identity = self._look()
        if identity != self._identity:
            self._identity = identity  # set first, so that only one of several threads warns
            try:
                self._rules = self._read(identity)
            except BadSetting as error:
                log.warning("%s; the rules read from it before stay in force", error)
            else:
                log.info("read the pairs file %s again", self._path)
        return self._rules

    def _look(self) -> _Identity | None:
        """Return the identity of the file's version; None if there is no readable file."""
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
    """Return the user's and the machine's file.  Raises BadSetting."""
    named = places.named is not None
    user = _RuleFile(places.user, required=named, spared=serves and not named)
    return user, _RuleFile(places.machine, spared=serves)


def packaged_file() -> Path:
    """Return the path of `configs/pairs.toml`: in the package, or next to it in a checkout."""
    package = Path(str(resources.files("specd")))
    inside = package / "configs" / PAIRS_FILE
    return inside if inside.is_file() else package.parent / "configs" / PAIRS_FILE


def read_rules(path: Path, origin: str) -> tuple[Rule, ...]:
    """Return the rules of the file; raise BadSetting."""
    return parse_rules(read_text(path), path, origin)


def parse_rules(text: str, path: Path, origin: str) -> tuple[Rule, ...]:
    """Return the rules of a pairs file; raise BadSetting.  path: of the file with this text."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers too long, tables too deep
        raise BadSetting(f"the pairs file {path} is not TOML: {error}") from error
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        fault = _describe_field_error(str(error), document)
        raise BadSetting(f"the pairs file {path} is wrong: {fault}") from error
    return tuple(
        _rule(entry, origin, path, _pair_label(i, document)) for i, entry in enumerate(file.pair)
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
    """Return a fault that the types do not exclude; "" if there is none."""
    if not all(name.strip() for name in names):
        return "a name is empty"
    for name in pull:
        if has_wildcards(name) or is_file(name):
            return f"`pull` has {name}, which cannot be pulled"
    if entry.draft_length is not None and entry.draft_length[0] > entry.draft_length[1]:
        return "`draft_length` begins above its end"
    return ""


def read_text(path: Path) -> str:
    """Return the text of the file; raise BadSetting."""
    try:
        return safe_files.read(path, _MAX_BYTES).decode().replace("\r\n", "\n")
    except OSError as error:
        raise BadSetting(f"cannot read the pairs file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"the pairs file {path} is not UTF-8: {error}") from error


# --------------------------------------------------------------------------- errors

#: msgspec's message: the text, and the path of the field.
_ERROR: Final = re.compile(r"(?P<words>.*?)( - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_PAIR: Final = re.compile(r"\.pair\[(\d+)\]")
_STEP: Final = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_KINDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "text",
}
#: Replacements for msgspec's texts; {0}, {1} are the pattern's groups.
_WORDS: Final = (
    (r"Object missing required field `(.*)`", "the field `{0}` is missing"),
    (r"Object contains unknown field `(.*)`", "there is no field `{0}`"),
    (r"Invalid enum value '(.*)'", "there is no `{0}`"),
    (r"Expected `(?:array|str)` of length >= 1", "must not be empty"),
    (r"Expected `array` of length (\d+), got (\d+)", "must have {0} items, and has {1}"),
    (r"Expected `(?:float|int)` > (\S+?)(?:\.0)?", "must be above {0}"),
    (r"Expected `(?:float|int)` >= (\S+?)(?:\.0)?", "must be at least {0}"),
    (r"Expected `(?:float|int)` <= (\S+?)(?:\.0)?", "must be at most {0}"),
)
_KIND: Final = r"Expected `(.*)`, got `(.*)`"


def _describe_field_error(error: str, document: Any) -> str:
    """Return the fault for the user.  error: msgspec's message.  document: the parsed TOML."""
    found = _ERROR.fullmatch(error)
    assert found is not None  # it takes any text
    path, words = found["path"] or "", _in_plain_words(found["words"])
    pair = _PAIR.match(path)
    where = _pair_label(int(pair[1]), document) if pair is not None else ""
    *around, last = _steps(path[pair.end() :] if pair is not None else path) or [""]
    if words.startswith("must"):
        words, last = f"{last or 'it'} {words}", ""
    return ": ".join(filter(None, [where, *around, last, words]))


def _pair_label(index: int, document: Any) -> str:
    """Return the name of a pair for the user, such as "pair 2 (llama3.1:8b)"."""
    target = _target(index, document)
    return f"pair {index + 1} ({target})" if target else f"pair {index + 1}"


def _target(index: int, document: Any) -> str:
    try:
        target = document["pair"][index]["target"]
        first = target[0] if isinstance(target, list) else target
    except (LookupError, TypeError):
        return ""
    return first if isinstance(first, str) else ""


def _in_plain_words(words: str) -> str:
    for pattern, said in _WORDS:
        if found := re.fullmatch(pattern, words):
            return said.format(*found.groups())
    if found := re.fullmatch(_KIND, words):
        return f"must be {_kinds(found[1])}, and is {_kinds(found[2])}"
    return words


def _kinds(found: str) -> str:
    """Return `str | array` as "text or a list"; null, a missing field, is left out."""
    kinds = [kind for kind in found.split(" | ") if kind != "null"]
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds)


def _steps(path: str) -> list[str]:
    """Return the fields and items of a path, the outermost first."""
    steps: list[str] = []
    for step in _STEP.finditer(path):
        if step["field"]:
            steps.append(f"`{step['field']}`")
        elif steps:
            which = f"item {int(step['index']) + 1}" if step["index"] else "a value"
            steps[-1] = f"{which} of {steps[-1]}"
    return steps
