"""Find models of the local store that could draft for a target without a rule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from specd import core
from specd.errors import StoreError
from specd.pairs.step_cost import MAX_STEP_COST, is_mixture, is_too_fast_to_draft, step_cost
from specd.pairs.vocabularies import Vocabularies
from specd.store.architectures import DIFFUSION, DRAFT_HEADS, NO_TEXT_GENERATION
from specd.store.gguf_metadata import GgufMetadata, format_count
from specd.store.stored_model import StoredModel

_CANNOT_DRAFT: Final = DIFFUSION | DRAFT_HEADS | NO_TEXT_GENERATION


class Store(Protocol):
    """The part of the store that discovery uses, such as `store.Library`."""

    def stored(self) -> Iterator[StoredModel]: ...
    def stamp(self) -> object: ...


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model of the local store that could draft."""

    name: str
    weights: Path
    facts: GgufMetadata


class DrafterDiscovery:
    """The search for drafters in the local store, done once per state of the store.

    on_gpu: returns whether models run on a GPU.
    """

    def __init__(
        self, store: Store, vocabularies: Vocabularies, on_gpu: Callable[[], bool]
    ) -> None:
        self._store = store
        self._on_gpu = on_gpu
        self._vocabularies = vocabularies
        self._seen: tuple[object, tuple[LocalModel, ...]] | None = None

    def scan(self, should_stop: Callable[[], bool]) -> None:
        """Read all headers that are not cached yet, until `should_stop` returns True."""
        for stored in self._store.stored():
            if should_stop():
                return
            with contextlib.suppress(StoreError):
                self._vocabularies.facts(stored.weights)

    def drafters_for(self, target: core.ModelRef) -> Iterator[LocalModel]:
        """Yield the models with its vocabulary that are small enough, the smallest first.

        Raises StoreError.
        """
        whole = self._vocabularies.facts(target.weights)
        on_gpu = self._on_gpu()
        for model in self._models():
            if step_cost(whole, model.facts, on_gpu=on_gpu) > MAX_STEP_COST:
                return
            if model.weights != target.weights and self._fits(target, model):
                yield model

    def refusal_of(self, target: core.ModelRef) -> str | None:
        """Return why a search is useless, as the end of a sentence, or None; raise StoreError."""
        facts = self._vocabularies.facts(target.weights)
        if not is_too_fast_to_draft(facts, on_gpu=self._on_gpu()):
            return None
        n_active = format_count(facts.n_active_parameters)
        what = f"it has only {n_active} parameters"
        if is_mixture(facts):
            what = f"it is a mixture of experts of which a token meets only {n_active} parameters"
        return f"{what}: it is about as quick as a drafter would be"

    def _fits(self, target: core.ModelRef, model: LocalModel) -> bool:
        try:
            return self._vocabularies.fits(target.weights, model.weights)
        except StoreError:  # it was deleted meanwhile
            return False

    def _models(self) -> tuple[LocalModel, ...]:
        stamp = self._store.stamp()
        if self._seen is None or self._seen[0] != stamp:
            # A model with several names appears under the first one.
            found = {model.weights: model for model in reversed(list(self._scan_store()))}
            order = sorted(found.values(), key=lambda model: (model.facts.read_bytes, model.name))
            self._seen = stamp, tuple(order)
        return self._seen[1]

    def _scan_store(self) -> Iterator[LocalModel]:
        for stored in self._store.stored():
            # With adapters a model behaves differently from its weights.
            if stored.config.remote_host or stored.paths("adapter"):
                continue
            try:
                weights = stored.weights
                facts = self._vocabularies.facts(weights)
            except StoreError:
                continue
            if not facts.has_pooling and facts.architecture not in _CANNOT_DRAFT:
                yield LocalModel(stored.name.short, weights, facts)
