"""Implement `specd pairs show`: list each model's drafter, its rule and its gain.

A model without a drafter gets the reason.  The command reads the store, the rules and the history
itself, so it needs no daemon and loads no model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer
from rich.console import Console

from specd.cli.formatting import make_console
from specd.cli.pairs_suggest import mute_store_log
from specd.cli.pairs_table import Row, print_rows, to_json
from specd.core import ModelRef, Pair
from specd.errors import InvalidRequest, SpecdError, StoreError
from specd.pairs import (
    HISTORY_FILE,
    History,
    HistoryEntry,
    Pairs,
    RuleBook,
    Vocabularies,
    file_identities,
    file_identity,
    load_rules,
)
from specd.pairs.finder import LOCAL_STORE
from specd.pairs.rules import has_wildcards, matches
from specd.placement import Device, Devices, machine_name
from specd.runner import probe
from specd.settings import Settings
from specd.store import Library


def show(model: str, *, as_json: bool, forget: bool) -> None:
    """Print one row per model that matches `model`; all models if it is empty."""
    settings = Settings()
    history = History(settings.state_dir / HISTORY_FILE if settings.state_dir else None)
    known = Vocabularies.in_state_dir(history)
    library = Library(
        settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
    )
    console = make_console()
    is_one = bool(model) and not has_wildcards(model)
    names = [model] if is_one else _names_like(model or "*", library)
    if forget:
        _forget(history, [library.resolve(name) for name in names] if model else None, console)
        return
    rules = load_rules(settings.pairs_file)
    entries = history.entries()

    @functools.cache
    def devices() -> list[Device]:
        """Return the devices; called only when needed, because it takes a second."""
        return list(Devices(probe(), igpu=settings.igpu)())

    here = machine_name(devices()) if entries else ""
    on = settings.speculative_decode
    finder = Pairs(
        library,
        rules,
        enabled=on,
        history=history,
        machine=here,
        vocabularies=known,
        on_gpu=lambda: bool(devices()),
    )
    learned = MachineHistory(entries, here)
    with mute_store_log():
        rows = [_row(name, library, finder, rules, learned.of, only=is_one) for name in names]
    if as_json:
        typer.echo(json.dumps([to_json(row) for row in rows], indent=2, ensure_ascii=False))
        return
    print_rows(console, rows)
    console.print(f"\nmodels: {settings.models}", style="dim")


def _names_like(pattern: str, library: Library) -> list[str]:
    """Return the matching names; no match raises InvalidRequest, except without a pattern."""
    names = sorted(name.short for name in library.names())
    found = [name for name in names if matches(pattern, name)]
    if not found and pattern != "*":
        raise InvalidRequest(f"no model on disk matches {pattern}")
    return found


def _row(
    name: str,
    library: Library,
    finder: Pairs,
    rules: RuleBook,
    learned: Callable[[Pair], HistoryEntry | None],
    *,
    only: bool,
) -> Row:
    """Return the model's row; a problem becomes part of it, or is raised if `only`."""
    try:
        pair = finder.pair(library.resolve(name))
    except SpecdError as error:
        if only:
            raise
        return Row(model=name, problem=str(error))
    by_rule = pair.rule and (pair.drafter is None or pair.drafter.source != LOCAL_STORE)
    rule = rules.rule_for(pair.target.name) if by_rule else None
    return Row(
        model=pair.target.name,
        pair=pair,
        learned=learned(pair),
        draft_length=rule.draft_length if rule is not None else None,
    )


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """The history of one machine.  entries: the last used first."""

    entries: Sequence[HistoryEntry]
    machine: str

    def of(self, pair: Pair) -> HistoryEntry | None:
        """Return the pair's last entry; gains depend on cache types and thread counts."""
        try:
            target = file_identity(pair.target.weights)
            drafter = file_identity(pair.drafter.weights) if pair.drafter else ""
            adapters = file_identities(pair.target.adapters)
        except OSError:
            return None
        wanted = target, adapters, drafter, self.machine
        for entry in self.entries:
            key = entry.key
            if (key.target, key.adapters, key.drafter, key.machine) == wanted:
                return entry
        return None


def _forget(history: History, models: Sequence[ModelRef] | None, console: Console) -> None:
    """Delete the history of these models; without models all of it, also of removed models."""
    try:
        targets = {file_identity(model.weights) for model in models or ()}
        n = history.forget(lambda key: models is None or key.target in targets)
    except OSError as error:
        raise StoreError(f"cannot change the history: {error}") from error
    console.print(f"forgot {n} pair{'' if n == 1 else 's'}")
