"""The models on the shelf that could draft for a target, where no rule finds it a drafter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from specd import core
from specd.errors import StoreError
from specd.pairs.vocabularies import Vocabularies
from specd.store.architectures import HEADS, NOT_FOR_TEXT, NOT_TOKEN_BY_TOKEN
from specd.store.facts import GgufFacts, human_count
from specd.store.stored import Stored

#: A target of which a token meets fewer parameters writes a token about as fast as its drafter can
#: be asked for one: launching kernels and looking at rows costs both of them the same.
LEAST_TARGET: Final = 3_000_000_000
#: A token takes as long as its weights take to be read, so this bounds what a guess costs.  With
#: four rows of a target's pass costing 1.83 of one (as measured on a CPU) and four of five guesses
#: kept, three guesses at a quarter of the price each gain 14 %, at a third 4 %, and at a half they
#: lose 11 %.  Whoever wants a closer pair writes a rule.
LEAST_RATIO: Final = 4

_CANNOT_DRAFT: Final = NOT_TOKEN_BY_TOKEN | HEADS | NOT_FOR_TEXT


class Store(Protocol):
    """What discovery asks of the store; `store.Library` is one."""

    def stored(self) -> Iterator[Stored]: ...
    def stamp(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Shelved:
    """A model that could draft."""

    name: str
    weights: Path
    facts: GgufFacts


class Shelf:
    """Looked through once per state of the store; the vocabularies say what each file is."""

    def __init__(self, store: Store, vocabularies: Vocabularies) -> None:
        self._store = store
        self._vocabularies = vocabularies
        self._seen: tuple[object, tuple[Shelved, ...]] | None = None

    def survey(self, is_over: Callable[[], bool]) -> None:
        """Read what nobody has read yet, until it is over."""
        for stored in self._store.stored():
            if is_over():
                return
            with contextlib.suppress(StoreError):
                self._vocabularies.facts(stored.weights)

    def drafters_for(self, target: core.ModelRef) -> Iterator[Shelved]:
        """Those that speak its vocabulary and are small enough, the smallest first.  StoreError."""
        whole = self._vocabularies.facts(target.weights)
        for model in self._models():
            if model.facts.read_bytes * LEAST_RATIO > whole.read_bytes:
                return
            if model.weights != target.weights and self._fits(target, model):
                yield model

    def refusal_of(self, target: core.ModelRef) -> str | None:
        """Why the target is not worth a search, as the end of a sentence.  StoreError."""
        facts = self._vocabularies.facts(target.weights)
        if facts.n_active_parameters >= LEAST_TARGET:
            return None
        n_active = human_count(facts.n_active_parameters)
        what = f"it has only {n_active} parameters"
        # What sees and hears is counted among all of them, so a few more are no experts yet.
        if facts.n_parameters >= 2 * facts.n_active_parameters:
            what = f"it is a mixture of experts of which a token meets only {n_active} parameters"
        return f"{what}: it is about as quick as a drafter would be"

    def _fits(self, target: core.ModelRef, model: Shelved) -> bool:
        try:
            return self._vocabularies.fits(target.weights, model.weights)
        except StoreError:  # it has gone since
            return False

    def _models(self) -> tuple[Shelved, ...]:
        stamp = self._store.stamp()
        if self._seen is None or self._seen[0] != stamp:
            # Of models under several names the first one's will do.
            found = {model.weights: model for model in reversed(list(self._look()))}
            order = sorted(found.values(), key=lambda model: (model.facts.read_bytes, model.name))
            self._seen = stamp, tuple(order)
        return self._seen[1]

    def _look(self) -> Iterator[Shelved]:
        for stored in self._store.stored():
            # One that adapters change is not what its weights say.
            if stored.config.remote_host or stored.paths("adapter"):
                continue
            try:
                weights = stored.weights
                facts = self._vocabularies.facts(weights)
            except StoreError:
                continue
            if not facts.has_pooling and facts.architecture not in _CANNOT_DRAFT:
                yield Shelved(stored.name.short, weights, facts)
