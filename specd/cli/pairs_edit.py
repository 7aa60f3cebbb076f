"""Implement `specd pairs add`, `refuse` and `remove`: edit the user's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import typer

from specd.core import ModelRef, NoPair
from specd.errors import InvalidName, InvalidRequest, SpecdError
from specd.pairs import Pairs, Rule, RuleBook, Rules, refusals
from specd.pairs.rule_files import (
    MAX_DRAFT,
    RuleFilePaths,
    default_rule_paths,
    load_rules,
    read_rules,
)
from specd.pairs.rules import USER, has_wildcards, is_file, key_of, matches, shorten_home
from specd.settings import Settings
from specd.store import Library, Name
from specd.store.gguf_metadata import GgufMetadata
from specd.store.name import parse
from specd.store.stored_model import StoredModel

#: Problems that refuse a drafter; a missing drafter is only a warning.
_INCOMPATIBLE: Final = {
    NoPair.VOCABULARY_DIFFERS,
    NoPair.CANNOT_REWIND,
    NoPair.EMBEDS,
    NoPair.UNREADABLE,
}


def add(
    target: str, drafters: Sequence[str], *, max_draft: int | None, force: bool, of_machine: bool
) -> None:
    from specd.pairs import user_file

    if max_draft is not None and max_draft > MAX_DRAFT:
        raise typer.BadParameter(
            f"a draft has at most {MAX_DRAFT} tokens", param_hint="--max-draft"
        )
    local_models = _LocalModels.open()
    _check_name(target)
    drafters = [_absolute(drafter) for drafter in drafters]
    path = user_file.file_to_write(_rule_files(), of_machine=of_machine)
    for drafter in drafters:
        _check_drafter(drafter, target, local_models, force=force)
    length = (1, max_draft) if max_draft is not None else None
    before = _find_rule(path, target)
    user_file.add(path, target, drafters, draft_length=length)
    typer.echo(f"wrote {shorten_home(path)}: {', '.join(drafters)} may draft for {target}")
    _print_replaced_rule(before, _find_rule(path, target))
    _print_matching_models(path, target, local_models)
    _warn_of_own_drafters(target, local_models)


def refuse(target: str, *, reason: str, of_machine: bool) -> None:
    from specd.pairs import user_file

    _check_name(target)
    path = user_file.file_to_write(_rule_files(), of_machine=of_machine)
    before = _find_rule(path, target)
    user_file.refuse(path, target, reason)
    typer.echo(f"wrote {shorten_home(path)}: nothing drafts for {target}")
    _print_replaced_rule(before, _find_rule(path, target))
    _print_matching_models(path, target, _LocalModels.open())


def remove(target: str, *, of_machine: bool) -> None:
    from specd.pairs import user_file

    rule_files = _rule_files()
    path = user_file.file_to_write(rule_files, of_machine=of_machine)
    rules = load_rules(rule_files.named)
    if user_file.remove(path, target):
        typer.echo(f"wrote {shorten_home(path)}: removed the rule for {target}")
        _print_deciding_rule(rules, target)
        return
    other = rule_files.user if of_machine else rule_files.machine
    if other is not None and _find_rule(other, target) is not None:
        option = "without --machine" if of_machine else "with --machine"
        raise InvalidRequest(
            f"{shorten_home(path)} has no rule for exactly {target}, but {shorten_home(other)} has:"
            f" remove it {option}"
        )
    raise InvalidRequest(
        f"none of your files has a rule for exactly {target}; `specd pairs` shows which"
    )


# --------------------------------------------------------------------------- rule files


def _rule_files() -> RuleFilePaths:
    return default_rule_paths(Settings().pairs_file)


def _find_rule(path: Path, target: str) -> Rule | None:
    """Return the file's rule for exactly this target, or None."""
    rules = read_rules(path, USER) if path.exists() else ()
    return next((rule for rule in rules if key_of(target) in map(key_of, rule.targets)), None)


def _print_replaced_rule(before: Rule | None, after: Rule | None) -> None:
    if before is None or after is None:
        return
    was, now = _rule_words(before), _rule_words(after)
    if was != now:
        typer.echo(f"This replaces the earlier rule: {was}.")


def _rule_words(rule: Rule) -> str:
    if not rule.drafters:
        return f"nothing drafts ({rule.reason})" if rule.reason else "nothing drafts"
    length = f", at most {rule.max_draft} tokens at a time" if rule.max_draft is not None else ""
    return f"{', '.join(rule.drafters)} may draft{length}"


def _print_rule_scope(path: Path) -> None:
    rule_files = _rule_files()
    if rule_files.named is None and path == rule_files.own:
        typer.echo(
            "Your own daemon reads this file at once. The systemd service reads"
            f" {rule_files.machine}: use --machine."
        )


def _print_matching_models(path: Path, target: str, local_models: _LocalModels) -> None:
    _print_rule_scope(path)
    names = local_models.names_like(target)
    if not names:
        here = local_models.names_like("*")
        typer.echo(
            f"Warning: no model here is called {target}.{_suggest_name(target, here)}", err=True
        )
    rules = load_rules(Settings().pairs_file)
    for name in names:
        found = rules.rule_for(name)
        if found is not None and not (
            found.file == path and key_of(found.winning_pattern) == key_of(target)
        ):
            typer.echo(f"For {name} another rule has priority: {found.label}")


def _warn_of_own_drafters(target: str, local_models: _LocalModels) -> None:
    """Warn about models that were created with a DRAFT."""
    for model in local_models.models_like(target):
        if model.draft is not None:
            typer.echo(
                f"Warning: {model.name} has a drafter of its own (DRAFT in its Modelfile), which"
                " goes before every rule.",
                err=True,
            )


def _print_deciding_rule(rules: RuleBook, target: str) -> None:
    names = _LocalModels.open().names_like(target)
    for name in names or ([] if has_wildcards(target) else [parse(target).short]):
        found = rules.rule_for(name)
        rule = f"this rule applies now: {found.label}" if found is not None else "no rule is left"
        typer.echo(f"For {name} {rule}")


def _suggest_name(name: str, here: Sequence[str]) -> str:
    """Return a question if the name is close to one of `here`, else ""."""
    short = name.removesuffix(":latest")
    close = get_close_matches(short, [one.removesuffix(":latest") for one in here], n=1, cutoff=0.8)
    return f" Did you mean {close[0]}?" if close else ""


# --------------------------------------------------------------------------- fit


@dataclass(frozen=True, slots=True)
class _LocalModels:
    """The models on disk."""

    library: Library

    @classmethod
    def open(cls) -> _LocalModels:
        settings = Settings()
        return cls(Library(settings.models, demo=settings.demo, go_template=settings.go_template))

    def names_like(self, pattern: str) -> list[str]:
        return sorted(n.short for n in self.library.names() if matches(pattern, n.short))

    def models_like(self, pattern: str) -> Iterator[ModelRef]:
        for name in self.names_like(pattern):
            try:
                yield self.library.resolve(name)
            except SpecdError:
                continue  # damaged: nothing is known about it

    def facts(self, drafter: str) -> GgufMetadata:
        """Return the drafter's metadata.  Raises SpecdError."""
        if is_file(drafter):
            return self.library.facts(Path(drafter).expanduser())
        return self.library.facts(self.library.resolve(drafter).weights)

    def drafter_error(self, drafter: str) -> str:
        """Return why the model cannot be a drafter at all, or ""."""
        try:
            refusal = refusals.of_drafter(drafter, self.facts(drafter))
        except SpecdError as error:
            refusal = refusals.unreadable(drafter, error)
        return refusal.detail if refusal is not None else ""


@dataclass(frozen=True, slots=True)
class _StoreSubset:
    """A view of a store that lists only some of its models."""

    library: Library
    subset: tuple[Name, ...]

    def names(self) -> tuple[Name, ...]:
        return self.subset

    def resolve(self, name: str) -> ModelRef:
        return self.library.resolve(name)

    def stored(self) -> Iterator[StoredModel]:
        return iter(())

    def stamp(self) -> object:
        return self.library.stamp()


def _check_name(pattern: str) -> None:
    try:
        parse("".join("x" if letter in "*?" else letter for letter in pattern))
    except InvalidName as error:
        raise InvalidName(
            f"{pattern!r} is neither a model's name nor a pattern of names"
        ) from error


def _check_drafter(drafter: str, target: str, local_models: _LocalModels, *, force: bool) -> None:
    """Raise if the drafter fits none of the target's models; warn if it is missing."""
    if is_file(drafter):
        candidates = [drafter] if _exists(drafter) else []
        missing = f"Warning: there is no file {drafter}."
    else:
        _check_name(drafter)
        candidates = local_models.names_like(drafter)
        missing = f"Warning: {drafter} is not in the store."
        if not has_wildcards(drafter):
            missing += f" `specd pull {drafter}` gets it."
            missing += _suggest_name(drafter, local_models.names_like("*"))
    if not candidates:
        typer.echo(missing, err=True)
        return
    targets = list(local_models.models_like(target))
    verdicts = [local_models.drafter_error(one) for one in candidates]
    if not all(verdicts):
        verdicts = list(_verdicts(local_models, targets, candidates))
    if verdicts and all(verdicts):
        if not force:
            raise InvalidRequest(f"{verdicts[0]} (--force adds it anyway)")
    else:
        _warn_of_large_drafters(local_models, targets, candidates)


def _warn_of_large_drafters(
    local_models: _LocalModels, targets: Sequence[ModelRef], drafters: Sequence[str]
) -> None:
    """Warn if even the smallest drafter is larger than the largest target."""
    sound = [one for one in drafters if not local_models.drafter_error(one)]
    smallest = min(sound, key=lambda one: local_models.facts(one).read_bytes)
    largest = max(
        targets, key=lambda one: local_models.library.facts(one.weights).read_bytes, default=None
    )
    if largest is None:
        return
    reads = local_models.library.facts(largest.weights).read_bytes
    if local_models.facts(smallest).read_bytes > reads:
        typer.echo(
            f"Warning: {smallest} is larger than {largest.name}: drafting would take longer than"
            " it saves.",
            err=True,
        )


def _absolute(drafter: str) -> str:
    """Return a file's absolute path, because the daemon runs in another folder."""
    if drafter.startswith(("./", "../")):
        return str(Path.cwd().joinpath(drafter).resolve())
    return drafter


def _exists(drafter: str) -> bool:
    try:
        return Path(drafter).expanduser().is_file()
    except RuntimeError:  # ~user for an unknown user
        return False


def _verdicts(
    local_models: _LocalModels, targets: Iterable[ModelRef], drafters: Sequence[str]
) -> Iterator[str]:
    """Yield, for each target and drafter, why they do not fit, or ""."""
    for target in targets:
        for drafter in drafters:
            if drafter == target.name:
                yield f"{drafter} cannot draft for itself."
                continue
            subset = () if is_file(drafter) else (parse(drafter),)
            rule = Rule(targets=(target.name,), drafters=(drafter,), origin=USER)
            finder = Pairs(_StoreSubset(local_models.library, subset), Rules(user=(rule,)))
            pair = finder.pair(replace(target, draft=None))
            yield pair.detail if pair.reason in _INCOMPATIBLE else ""
