"""Implement `specd pairs suggest`: name drafters to pull for models without one."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import typer
from rich.console import Console

from specd.cli.formatting import make_console, wrap_line
from specd.core import NoPair, Pair
from specd.errors import SpecdError
from specd.pairs import Pairs, Rule, load_rules
from specd.pairs.refusals import sentence
from specd.pairs.rules import USER
from specd.settings import Settings
from specd.store import Library
from specd.store.name import parse

#: Reasons for which another drafter may work.
_HELPED_BY_OTHERS: Final = {NoPair.NOT_FOUND, NoPair.VOCABULARY_DIFFERS, NoPair.UNREADABLE}

_INDENT: Final = " " * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A suggestion for one model.

    pull: missing drafters, the best first.  why: one sentence, or "".
    drafter: the one that the model already has.  expected: published gain by task.
    """

    model: str
    drafter: str = ""
    pull: tuple[str, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def command(self) -> str:
        return f"specd pull {self.pull[0]}" if self.pull else ""


def suggest(model: str, *, as_json: bool) -> None:
    """Print drafters to pull for `model`; if it is empty, for all models without a drafter."""
    settings = Settings()
    library = Library(settings.models, demo=settings.demo, go_template=settings.go_template)
    rules = load_rules(settings.pairs_file)
    finder = Pairs(library, rules, enabled=settings.speculative_decode)
    here = {name.key for name in library.names()}
    found = []
    for name in [model] if model else sorted(name.short for name in library.names()):
        try:
            with mute_store_log():
                pair = finder.pair(library.resolve(name))
        except SpecdError as error:
            if model:
                raise
            found.append(Suggestion(model=name, why=str(error)))
            continue
        found.append(suggest_for_pair(pair, rules.rule_for(pair.target.name), here))
    if not model:
        found = [one for one in found if one.pull or not one.drafter]
    _print(found, as_json=as_json)


@contextmanager
def mute_store_log() -> Iterator[None]:
    """Silence the store's log of damaged models, because their rows show the problem."""
    log = logging.getLogger("specd.store.library")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def suggest_for_pair(pair: Pair, rule: Rule | None, here: Collection[str]) -> Suggestion:
    """Return the suggestion for a model.  here: keys of the names on disk."""
    name = pair.target.name
    if pair.drafter is not None:
        why = f"{pair.drafter.name} drafts for it already."
        if not pair.pull:
            return Suggestion(model=name, drafter=pair.drafter.name, why=why)
        # A local drafter of the same family: a rule's drafter was chosen for this model.
        why = f"{pair.drafter.name} drafts for it, from the local store; the published pair is:"
        if rule is not None and rule.origin == USER:
            why = (
                f"{pair.drafter.name} drafts for it, from the local store; your rule names another:"
            )
        expected = rule.expected if rule is not None else {}
        return Suggestion(
            model=name, drafter=pair.drafter.name, pull=pair.pull, expected=expected, why=why
        )
    if pair.reason not in _HELPED_BY_OTHERS:
        return Suggestion(model=name, why=pair.detail)
    if rule is None:
        hint = f"`specd pairs add {name} DRAFTER` names one."
        return Suggestion(model=name, why=f"{pair.detail} {hint}")
    pull = tuple(one for one in rule.pull if parse(one).key not in here)
    if pull:
        why = "" if pair.reason is NoPair.NOT_FOUND else pair.detail
        return Suggestion(model=name, pull=pull, expected=rule.expected, why=why)
    return Suggestion(
        model=name, why=sentence(f"Nothing to pull: {rule.reason}") if rule.reason else pair.detail
    )


# --------------------------------------------------------------------------- output


def _print(found: Iterable[Suggestion], *, as_json: bool) -> None:
    rows = list(found)
    if as_json:
        typer.echo(json.dumps([to_json(row) for row in rows], indent=2, ensure_ascii=False))
    elif not rows:
        typer.echo("Every model here has a drafter.")
    else:
        show(rows, make_console())


def show(rows: Iterable[Suggestion], console: Console) -> None:
    """Print the suggestions; a command stays on one line so that it can be copied."""
    for row in sorted(rows, key=lambda row: not row.pull):
        console.print(row.model, style="bold", markup=False, soft_wrap=True)
        if row.why:
            for piece in wrap_line(row.why, console.width, _INDENT, _INDENT):
                console.print(piece, markup=False, soft_wrap=True)
        for i, name in enumerate(row.pull):
            line = f"{_INDENT}specd pull {name}"
            # The figures are those of the first one.
            line += f"    {_expected(row)}" if i == 0 else "    or this one"
            console.print(line, markup=False, soft_wrap=True)


def _expected(row: Suggestion) -> str:
    figures = [
        f"{gain:.1f}×" if task == "any" else f"{task} {gain:.1f}×"
        for task, gain in row.expected.items()
    ]
    return f"published: {', '.join(figures)} as fast" if figures else "no published figure"


def to_json(row: Suggestion) -> dict[str, Any]:
    return {
        "model": row.model,
        "drafter": row.drafter or None,
        "pull": list(row.pull),
        "command": row.command or None,
        "expected": dict(row.expected),
        "why": row.why,
    }
