"""Implement `specd pairs add`, `refuse` and `remove`: edit the user's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import typer

from specd.core import LocalModel
from specd.errors import InvalidName, InvalidRequest, SpecdError
from specd.pairs import Rule, Vocabularies, refusals, user_file
from specd.pairs.rule_files import MAX_DRAFT, default_rule_paths, load_rules, read_rules
from specd.pairs.rules import USER, has_wildcards, is_file, key_of, matches, shorten_home
from specd.settings import Settings
from specd.store import Library
from specd.store.name import parse


def add(
    target: str, drafters: Sequence[str], *, max_draft: int | None, force: bool, of_machine: bool
) -> None:
    if max_draft is not None and max_draft > MAX_DRAFT:
        raise typer.BadParameter(
            f"a draft has at most {MAX_DRAFT} tokens", param_hint="--max-draft"
        )
    _check_name(target)
    models = _LocalModels.open()
    drafters = [_absolute(drafter) for drafter in drafters]
    length = (1, max_draft) if max_draft is not None else None

    def change(path: Path) -> None:
        for drafter in drafters:
            _check_drafter(drafter, target, models, force=force)
        user_file.add(path, target, drafters, draft_length=length)

    outcome = f"{', '.join(drafters)} may draft for {target}"
    _change_rule(target, change, outcome, models, of_machine=of_machine)
    for model in models.models_like(target):
        if model.draft is not None:
            _warn(
                f"{model.name} has a drafter of its own (DRAFT in its Modelfile), which goes before"
                " every rule."
            )


def refuse(target: str, *, reason: str, of_machine: bool) -> None:
    _check_name(target)
    _change_rule(
        target,
        lambda path: user_file.refuse(path, target, reason),
        f"nothing drafts for {target}",
        _LocalModels.open(),
        of_machine=of_machine,
    )


def remove(target: str, *, of_machine: bool) -> None:
    rule_files = default_rule_paths(Settings().pairs_file)
    path = user_file.file_to_write(rule_files, of_machine=of_machine)
    rules = load_rules(rule_files.named)
    if user_file.remove(path, target):
        typer.echo(f"wrote {shorten_home(path)}: removed the rule for {target}")
        names = _LocalModels.open().names_like(target)
        for name in names or ([] if has_wildcards(target) else [parse(target).short]):
            found = rules.rule_for(name)
            applies = f"this rule applies now: {found.label}" if found else "no rule is left"
            typer.echo(f"For {name} {applies}")
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


def _change_rule(
    target: str,
    change: Callable[[Path], None],
    outcome: str,
    models: _LocalModels,
    *,
    of_machine: bool,
) -> None:
    """Change the rule in the user's or the machine's file, and print what that means here."""
    settings = Settings()
    rule_files = default_rule_paths(settings.pairs_file)
    path = user_file.file_to_write(rule_files, of_machine=of_machine)
    before = _find_rule(path, target)
    change(path)
    typer.echo(f"wrote {shorten_home(path)}: {outcome}")
    after = _find_rule(path, target)
    if before and after and _rule_words(before) != _rule_words(after):
        typer.echo(f"This replaces the earlier rule: {_rule_words(before)}.")
    if rule_files.named is None and path == rule_files.own:
        typer.echo(
            "Your own daemon reads this file at once. The systemd service reads"
            f" {rule_files.machine}: use --machine."
        )
    names = models.names_like(target)
    if not names:
        _warn(f"no model here is called {target}.{_suggest_name(target, models)}")
    rules = load_rules(settings.pairs_file)
    for name in names:
        found = rules.rule_for(name)
        is_this = found and found.file == path and key_of(found.winning_pattern) == key_of(target)
        if found and not is_this:
            typer.echo(f"For {name} another rule has priority: {found.label}")


def _find_rule(path: Path, target: str) -> Rule | None:
    """Return the file's rule for exactly this target, or None."""
    rules = read_rules(path, USER) if path.exists() else ()
    return next((rule for rule in rules if key_of(target) in map(key_of, rule.targets)), None)


def _rule_words(rule: Rule) -> str:
    if not rule.drafters:
        return f"nothing drafts ({rule.reason})" if rule.reason else "nothing drafts"
    length = f", at most {rule.max_draft} tokens at a time" if rule.max_draft is not None else ""
    return f"{', '.join(rule.drafters)} may draft{length}"


def _suggest_name(name: str, models: _LocalModels) -> str:
    """Return a question if the name is close to that of a local model, else ""."""
    here = [one.removesuffix(":latest") for one in models.names_like("*")]
    close = get_close_matches(name.removesuffix(":latest"), here, n=1, cutoff=0.8)
    return f" Did you mean {close[0]}?" if close else ""


def _warn(text: str) -> None:
    typer.echo(f"Warning: {text}", err=True)


# --------------------------------------------------------------------------- fit


@dataclass(frozen=True, slots=True)
class _LocalModels:
    """The models on disk."""

    library: Library
    vocabularies: Vocabularies = field(default_factory=lambda: Vocabularies(None))

    @classmethod
    def open(cls) -> _LocalModels:
        settings = Settings()
        return cls(Library(settings.models, demo=settings.demo, go_template=settings.go_template))

    def names_like(self, pattern: str) -> list[str]:
        return sorted(n.short for n in self.library.names() if matches(pattern, n.short))

    def models_like(self, pattern: str) -> Iterator[LocalModel]:
        for name in self.names_like(pattern):
            try:
                yield self.library.resolve(name)
            except SpecdError:
                continue  # damaged: nothing is known about it

    def weights(self, drafter: str) -> Path:
        """Return the weights of a file or a model.  Raises SpecdError."""
        if is_file(drafter):
            return Path(drafter).expanduser()
        return self.library.resolve(drafter).weights

    def drafter_error(self, drafter: str, target: LocalModel | None = None) -> str:
        """Return why the drafter cannot be used for the target, or for any model; "" if it can."""
        if target is not None and drafter == target.name:
            return f"{drafter} cannot draft for itself."
        try:
            weights = self.weights(drafter)
        except SpecdError as error:
            return refusals.unreadable(drafter, error).detail
        refusal = refusals.of_target(target) if target is not None else None
        if refusal is None:
            name_and_weights = (target.name, target.weights) if target is not None else None
            refusal = self.vocabularies.refusal(drafter, weights, name_and_weights)
        return refusal.detail if refusal is not None else ""


def _check_name(pattern: str) -> None:
    try:
        parse("".join("x" if letter in "*?" else letter for letter in pattern))
    except InvalidName as error:
        raise InvalidName(
            f"{pattern!r} is neither a model's name nor a pattern of names"
        ) from error


def _check_drafter(drafter: str, target: str, models: _LocalModels, *, force: bool) -> None:
    """Raise if the drafter fits none of the target's models; warn if it is missing."""
    if is_file(drafter):
        candidates = [drafter] if _exists(drafter) else []
        missing = f"there is no file {drafter}."
    else:
        _check_name(drafter)
        candidates = models.names_like(drafter)
        missing = f"{drafter} is not in the store."
        if not has_wildcards(drafter):
            missing += f" `specd pull {drafter}` gets it.{_suggest_name(drafter, models)}"
    if not candidates:
        _warn(missing)
        return
    targets = list(models.models_like(target))
    problems = [models.drafter_error(one) for one in candidates]
    usable = [one for one, why in zip(candidates, problems, strict=True) if not why]
    if usable:
        problems = [models.drafter_error(one, model) for model in targets for one in usable]
    if not problems or not all(problems):
        _warn_of_large_drafters(models, targets, usable)
    elif not force:
        raise InvalidRequest(f"{problems[0]} (--force adds it anyway)")


def _warn_of_large_drafters(
    models: _LocalModels, targets: Sequence[LocalModel], drafters: Sequence[str]
) -> None:
    """Warn if even the smallest drafter is larger than the largest target."""
    facts = models.vocabularies.facts
    sizes = {facts(one.weights).read_bytes: one.name for one in targets}
    n_bytes, smallest = min((facts(models.weights(one)).read_bytes, one) for one in drafters)
    if sizes and n_bytes > max(sizes):
        _warn(
            f"{smallest} is larger than {sizes[max(sizes)]}: drafting would take longer than it"
            " saves."
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
