"""Finds a target its drafter: the manifest's own, else the closest rule's first that fits.

An unfit drafter never costs the target: the pair then carries the reason, in a sentence for the
user, and the target is served plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from specd import core
from specd.core import Drafter, NoPair, Pair
from specd.errors import SpecdError
from specd.pairs.architectures import CANNOT_REWIND, HEADS, NOT_TOKEN_BY_TOKEN
from specd.pairs.rules import USER, Rule, RuleBook, matches
from specd.pairs.vocabularies import Vocabularies
from specd.store.facts import read_facts
from specd.store.file_cache import FileCache
from specd.store.name import Name

MANIFEST: Final = "manifest"


class Models(Protocol):
    """What pairs ask of the store; `store.Library` is one."""

    def names(self) -> tuple[Name, ...]: ...
    def resolve(self, name: str) -> core.ModelRef: ...


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: NoPair
    detail: str


class Pairs:
    """Pairs targets with drafters; verdicts are remembered per content of the files.

    enabled: the user's switch for all of speculation.  Methods read files: call them off the event
    loop.
    """

    def __init__(self, library: Models, rules: RuleBook, *, enabled: bool = True) -> None:
        self._library = library
        self._rules = rules
        self._enabled = enabled
        self._vocabularies = Vocabularies(None)
        self._architectures: FileCache[str] = FileCache(lambda path: read_facts(path).architecture)

    def pair(self, target: core.ModelRef) -> Pair:
        """Never raises for a drafter's sake: what is wrong with it becomes reason and detail."""
        refusal = self._refusal_of_target(target)
        if refusal is not None:
            return Pair(target=target, reason=refusal.reason, detail=refusal.detail)
        rule = self._rules.rule_for(target.name)
        first_refusal: _Refusal | None = None
        for candidate in self._candidates(target, rule):
            if isinstance(candidate, Drafter):
                refusal = self._refusal_of_drafter(target, candidate)
                if refusal is None:
                    return Pair(target=target, drafter=candidate)
            else:
                refusal = candidate
            first_refusal = first_refusal or refusal
        found = first_refusal or _nothing_found(target, rule)
        pull = rule.pull if rule is not None else ()
        return Pair(target=target, reason=found.reason, detail=found.detail, pull=pull)

    def _refusal_of_target(self, target: core.ModelRef) -> _Refusal | None:
        if not self._enabled:
            return _Refusal(NoPair.DISABLED_BY_USER, "Speculative decoding is switched off.")
        if target.only_embeds:
            return _Refusal(
                NoPair.EMBEDS,
                f"{target.name} gives vectors instead of text, so there is nothing to draft.",
            )
        architecture = target.architecture
        if architecture in CANNOT_REWIND:
            return _Refusal(
                NoPair.CANNOT_REWIND,
                f"{target.name} is of the architecture {architecture}, whose memory cannot take"
                " back tokens.",
            )
        return _refusal_of_architecture(target.name, architecture)

    # --------------------------------------------------------------- candidates

    def _candidates(self, target: core.ModelRef, rule: Rule | None) -> Iterator[Drafter | _Refusal]:
        """In order of preference; a rule without drafters of the user's own silences all others."""
        if rule is not None and rule.origin == USER and not rule.drafters:
            return
        if target.draft is not None:
            name = f"{target.name} (its own draft)"
            yield Drafter(name=name, weights=target.draft, source=MANIFEST)
        if rule is not None:
            yield from self._named_by(rule, target)

    def _named_by(self, rule: Rule, target: core.ModelRef) -> Iterator[Drafter | _Refusal]:
        installed = sorted(name.short for name in self._library.names())
        for pattern in rule.drafters:
            if pattern.startswith(("/", "~")):
                path = Path(pattern).expanduser()
                yield Drafter(name=path.name, weights=path, source=rule.origin)
                continue
            for name in installed:
                if matches(pattern, name) and name != target.name:
                    yield self._resolved(name, rule)

    def _resolved(self, name: str, rule: Rule) -> Drafter | _Refusal:
        try:
            model = self._library.resolve(name)
        except SpecdError as error:
            return _unreadable(name, error)
        return Drafter(name=model.name, weights=model.weights, source=rule.origin)

    # ------------------------------------------------------------------ checks

    def _refusal_of_drafter(self, target: core.ModelRef, drafter: Drafter) -> _Refusal | None:
        try:
            architecture = self._architectures.get(drafter.weights)
            refusal = _refusal_of_architecture(f"The drafter {drafter.name}", architecture)
            if refusal is not None:
                return refusal
            difference = self._vocabularies.difference(target.weights, drafter.weights)
        except SpecdError as error:
            return _unreadable(drafter.name, error)
        if not difference:
            return None
        return _Refusal(
            NoPair.VOCABULARY_DIFFERS,
            f"The drafter {drafter.name} does not speak the vocabulary of {target.name}:"
            f" {difference}.",
        )


def _unreadable(drafter: str, error: SpecdError) -> _Refusal:
    return _Refusal(NoPair.UNREADABLE, f"The drafter {drafter} cannot be used: {error}.")


def _refusal_of_architecture(who: str, architecture: str) -> _Refusal | None:
    if architecture in NOT_TOKEN_BY_TOKEN:
        return _Refusal(
            NoPair.CANNOT_REWIND,
            f"{who} is of the architecture {architecture}, which does not write token by token.",
        )
    if architecture in HEADS:
        return _Refusal(
            NoPair.UNREADABLE,
            f"{who} is a drafting head ({architecture}), not a model that can be run by itself.",
        )
    return None


def _nothing_found(target: core.ModelRef, rule: Rule | None) -> _Refusal:
    if rule is None:
        return _Refusal(NoPair.NOT_FOUND, f"No rule names a drafter for {target.name}.")
    if not rule.drafters:
        words = rule.reason or f"a rule of the {rule.origin}'s pairs file says so"
        return _Refusal(NoPair.REFUSED_BY_RULE, f"{target.name} is served plain: {words}.")
    return _Refusal(
        NoPair.NOT_FOUND,
        f"No drafter for {target.name} is installed; any of these would do:"
        f" {', '.join(rule.drafters)}.",
    )
