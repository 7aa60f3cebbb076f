"""`specd pairs add`, `refuse` and `remove`: rules of one's own, in a file that says so."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer

from specd.core import ModelRef, NoPair
from specd.errors import InvalidName, InvalidRequest, SpecdError
from specd.pairs import Pairs, Rule, RuleBook, Rules, refusals
from specd.pairs.registry import MAX_DRAFT, Places, load_rules, usual_places
from specd.pairs.rules import USER, has_wildcards, home_short, is_file, key_of, matches
from specd.settings import Settings
from specd.store import Library, Name
from specd.store.facts import GgufFacts
from specd.store.name import parse
from specd.store.stored import Stored

#: What says that a drafter is wrong for a target, and not that it is not there yet.
_UNFIT: Final = {
    NoPair.VOCABULARY_DIFFERS,
    NoPair.CANNOT_REWIND,
    NoPair.EMBEDS,
    NoPair.UNREADABLE,
}


def add(target: str, drafters: Sequence[str], *, max_draft: int | None, force: bool) -> None:
    from specd.pairs import user_file

    if max_draft is not None and max_draft > MAX_DRAFT:
        raise typer.BadParameter(
            f"a draft has at most {MAX_DRAFT} tokens", param_hint="--max-draft"
        )

    shelf = _Shelf.open()
    _check_name(target)
    path = _file()
    for drafter in drafters:
        _check_drafter(drafter, target, shelf, force=force)
    length = (1, max_draft) if max_draft is not None else None
    user_file.add(path, target, drafters, draft_length=length)
    typer.echo(f"wrote {home_short(path)}: {', '.join(drafters)} may draft for {target}")
    _say_what_it_is_for(path, target, shelf)


def refuse(target: str, *, reason: str) -> None:
    from specd.pairs import user_file

    _check_name(target)
    path = _file()
    user_file.refuse(path, target, reason)
    typer.echo(f"wrote {home_short(path)}: nobody drafts for {target}")
    _say_what_it_is_for(path, target, _Shelf.open())


def remove(target: str) -> None:
    from specd.pairs import user_file

    places = _places()
    rules = load_rules(places.named)
    for path in filter(None, (places.user, places.machine)):
        if user_file.remove(path, target):
            typer.echo(f"wrote {home_short(path)}: the rule for {target} is gone")
            _say_what_decides(rules, target)
            return
    raise InvalidRequest(
        f"no file of yours has a rule for just {target}; `specd pairs` shows which"
    )


# --------------------------------------------------------------------------- where


def _places() -> Places:
    return usual_places(Settings().pairs_file)


def _file() -> Path:
    from specd.pairs.user_file import file_to_write

    return file_to_write(_places(), is_root=os.geteuid() == 0)


def _say_who_reads(path: Path) -> None:
    places = _places()
    if places.named is None and path == places.own:
        typer.echo(
            f"A daemon of yours reads it by itself; one of another user reads {places.machine}."
        )


def _say_what_it_is_for(path: Path, target: str, shelf: _Shelf) -> None:
    _say_who_reads(path)
    names = shelf.names_like(target)
    if not names:
        typer.echo(f"Warning: no model here is called {target}.", err=True)
    rules = load_rules(Settings().pairs_file)
    for name in names:
        found = rules.rule_for(name)
        if found is not None and not (found.file == path and key_of(found.won) == key_of(target)):
            typer.echo(f"For {name} another rule goes before it: {found.said}")


def _say_what_decides(rules: RuleBook, target: str) -> None:
    names = _Shelf.open().names_like(target)
    for name in names or ([] if has_wildcards(target) else [parse(target).short]):
        found = rules.rule_for(name)
        said = f"this rule decides now: {found.said}" if found is not None else "no rule is left"
        typer.echo(f"For {name} {said}")


# --------------------------------------------------------------------------- what fits


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The models on disk."""

    library: Library

    @classmethod
    def open(cls) -> _Shelf:
        settings = Settings()
        return cls(Library(settings.models, demo=settings.demo, go_template=settings.go_template))

    def names_like(self, pattern: str) -> list[str]:
        return sorted(n.short for n in self.library.names() if matches(pattern, n.short))

    def models_like(self, pattern: str) -> Iterator[ModelRef]:
        for name in self.names_like(pattern):
            try:
                yield self.library.resolve(name)
            except SpecdError:
                continue  # damaged: nothing can be said of it

    def facts(self, drafter: str) -> GgufFacts:
        """Raises SpecdError."""
        if is_file(drafter):
            return self.library.facts(Path(drafter).expanduser())
        return self.library.facts(self.library.resolve(drafter).weights)

    def fault_of(self, drafter: str) -> str:
        """Why it can draft for nobody, or ""."""
        try:
            refusal = refusals.of_drafter(drafter, self.facts(drafter))
        except SpecdError as error:
            refusal = refusals.unreadable(drafter, error)
        return refusal.detail if refusal is not None else ""


@dataclass(frozen=True, slots=True)
class _Only:
    """A store with but some of its models."""

    library: Library
    kept: tuple[Name, ...]

    def names(self) -> tuple[Name, ...]:
        return self.kept

    def resolve(self, name: str) -> ModelRef:
        return self.library.resolve(name)

    def stored(self) -> Iterator[Stored]:
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


def _check_drafter(drafter: str, target: str, shelf: _Shelf, *, force: bool) -> None:
    """Raise where it fits none of the models that it is meant for; say where it is missing."""
    if is_file(drafter):
        candidates = [drafter] if _exists(drafter) else []
        missing = f"Warning: there is no file {drafter}."
    else:
        _check_name(drafter)
        candidates = shelf.names_like(drafter)
        missing = f"Warning: {drafter} is not in the store."
        if not has_wildcards(drafter):
            missing += f" `specd pull {drafter}` gets it."
    if not candidates:
        typer.echo(missing, err=True)
        return
    targets = list(shelf.models_like(target))
    verdicts = [shelf.fault_of(one) for one in candidates]
    if not all(verdicts):
        verdicts = list(_verdicts(shelf, targets, candidates))
    if verdicts and all(verdicts):
        if not force:
            raise InvalidRequest(f"{verdicts[0]} (--force adds it all the same)")
    else:
        _say_what_is_too_large(shelf, targets, candidates)


def _say_what_is_too_large(
    shelf: _Shelf, targets: Sequence[ModelRef], drafters: Sequence[str]
) -> None:
    """Where even the smallest drafter is larger than the largest target."""
    sound = [one for one in drafters if not shelf.fault_of(one)]
    smallest = min(sound, key=lambda one: shelf.facts(one).read_bytes)
    largest = max(
        targets, key=lambda one: shelf.library.facts(one.weights).read_bytes, default=None
    )
    if largest is None:
        return
    reads = shelf.library.facts(largest.weights).read_bytes
    if shelf.facts(smallest).read_bytes > reads:
        typer.echo(
            f"Warning: {smallest} is larger than {largest.name}: a guess takes longer than what it"
            " is to save.",
            err=True,
        )


def _exists(drafter: str) -> bool:
    try:
        return Path(drafter).expanduser().is_file()
    except RuntimeError:  # ~somebody, who has no home here
        return False


def _verdicts(shelf: _Shelf, targets: Iterable[ModelRef], drafters: Sequence[str]) -> Iterator[str]:
    """Why a drafter does not fit a target, or "", for each two of them."""
    for target in targets:
        for drafter in drafters:
            if drafter == target.name:
                yield f"{drafter} cannot draft for itself."
                continue
            kept = () if is_file(drafter) else (parse(drafter),)
            rule = Rule(targets=(target.name,), drafters=(drafter,), origin=USER)
            finder = Pairs(_Only(shelf.library, kept), Rules(user=(rule,)))
            pair = finder.pair(replace(target, draft=None))
            yield pair.detail if pair.reason in _UNFIT else ""
