"""Find models of the local store that could draft for a target without a rule.

A draft step must be cheap relative to a pass of the target.  Both costs follow from the bytes read:
a token takes the time to read the weights, plus a floor that does not depend on the model's size.
Both differ by device.

- On a CPU the floor is the synchronisation of the threads at each layer: some tenths of a
  millisecond, in which 8 MB are read.
- On a GPU the floor is the launch of some hundred kernels per pass.  Below three billion parameters
  launches take most of a pass.  A drafter's pass has as many, so it costs about as much as the
  target's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from specd import core
from specd.errors import StoreError
from specd.pairs.vocabularies import Vocabularies
from specd.store.architectures import DIFFUSION, DRAFT_HEADS, NO_TEXT_GENERATION
from specd.store.gguf_metadata import GgufMetadata, format_count
from specd.store.stored_model import StoredModel

#: The CPU's floor, as the bytes that are read in that time.  The demo pair reads 3.2
#: and 5.4 MB, and on two cores a step of its drafter takes 0.85 of a pass of its target: 9 MB.
CPU_FLOOR_BYTES: Final = 8_000_000
#: The least active parameters of a target for which a search pays on a GPU.
GPU_LEAST_PARAMETERS: Final = 3_000_000_000
#: With four rows of a target's pass costing 1.83 of one (as measured on a CPU) and four of five
#: guesses kept, three guesses at a quarter of the price each gain 14 %, at a third 4 %, and at a
#: half they lose 11 %.  A closer pair needs a rule.
MAX_STEP_COST: Final = 0.25

_CANNOT_DRAFT: Final = DIFFUSION | DRAFT_HEADS | NO_TEXT_GENERATION


class Store(Protocol):
    """The part of the store that discovery uses, such as `store.Library`."""

    def stored(self) -> Iterator[StoredModel]: ...
    def stamp(self) -> object: ...


@dataclass(frozen=True, slots=True)
class DrafterCandidate:
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
        self._seen: tuple[object, tuple[DrafterCandidate, ...]] | None = None

    def scan(self, should_stop: Callable[[], bool]) -> None:
        """Read all headers that are not cached yet, until `should_stop` returns True."""
        for stored in self._store.stored():
            if should_stop():
                return
            with contextlib.suppress(StoreError):
                self._vocabularies.facts(stored.weights)

    def drafters_for(self, target: core.LocalModel) -> Iterator[DrafterCandidate]:
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

    def refusal_of(self, target: core.LocalModel) -> str | None:
        """Return why a search is useless, as the end of a sentence, or None; raise StoreError."""
        facts = self._vocabularies.facts(target.weights)
        if not is_too_fast_to_draft(facts, on_gpu=self._on_gpu()):
            return None
        n_active = format_count(facts.n_active_parameters)
        what = f"it has only {n_active} parameters"
        if is_mixture(facts):
            what = f"it is a mixture of experts that uses only {n_active} parameters for a token"
        return f"{what}: it is about as fast as a drafter would be"

    def _fits(self, target: core.LocalModel, model: DrafterCandidate) -> bool:
        try:
            return self._vocabularies.fits(target.weights, model.weights)
        except StoreError:  # it was deleted meanwhile
            return False

    def _models(self) -> tuple[DrafterCandidate, ...]:
        stamp = self._store.stamp()
        if self._seen is None or self._seen[0] != stamp:
            # A model with several names appears under the first one.
            found = {model.weights: model for model in reversed(list(self._scan_store()))}
            order = sorted(found.values(), key=lambda model: (model.facts.read_bytes, model.name))
            self._seen = stamp, tuple(order)
        return self._seen[1]

    def _scan_store(self) -> Iterator[DrafterCandidate]:
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
                yield DrafterCandidate(stored.name.short, weights, facts)


def step_cost(target: GgufMetadata, drafter: GgufMetadata, *, on_gpu: bool) -> float:
    """Return the estimated time of a draft step ÷ that of a pass of the target.

    on_gpu: whether both run on a GPU.  Returns 1 for a target that is too fast for any drafter.
    """
    if is_too_fast_to_draft(target, on_gpu=on_gpu):
        return 1.0
    floor_bytes = 0 if on_gpu else CPU_FLOOR_BYTES
    return (floor_bytes + drafter.read_bytes) / max(floor_bytes + target.read_bytes, 1)


def is_too_fast_to_draft(target: GgufMetadata, *, on_gpu: bool) -> bool:
    """Return whether even the smallest drafter costs too much relative to this target.

    A mixture with few active parameters is too fast on a CPU as well: each drafted token uses other
    experts, so that checking several tokens costs about as much as generating them.
    """
    if on_gpu or is_mixture(target):
        return target.n_active_parameters < GPU_LEAST_PARAMETERS
    return MAX_STEP_COST * (CPU_FLOOR_BYTES + target.read_bytes) < CPU_FLOOR_BYTES


def is_mixture(model: GgufMetadata) -> bool:
    """Return whether the model is a mixture of experts.

    The parameters of vision and audio parts also count as inactive, so the bound is generous.
    """
    return model.n_parameters >= 2 * model.n_active_parameters
