"""Finds a target its drafter: the manifest's own, else the closest rule's first that fits, else the
smallest on the shelf that speaks its vocabulary.

An unfit drafter never costs the target: the pair then carries the reason, in a sentence for the
user, and the target is served plain.  So it is with one that was tried here and did not pay.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from specd import core
from specd.core import Drafter, NoPair, Pair, SkippedDrafter
from specd.errors import SpecdError, StoreError
from specd.pairs import refusals
from specd.pairs.discovery import DrafterDiscovery, Store
from specd.pairs.history import History
from specd.pairs.refusals import Refusal
from specd.pairs.rules import USER, Rule, RuleBook, is_file, matches
from specd.pairs.verdict import PairOutcome, Verdict, Verdicts
from specd.pairs.vocabularies import Vocabularies
from specd.store import demo
from specd.store.name import Name

MANIFEST: Final = "manifest"
LOCAL_STORE: Final = "shelf"
#: Decisions that are remembered; more targets than anybody has.
_MAX_DECIDED: Final = 1000

#: Drafters that are skipped because they lose, by their weights.
_Lost = dict[Path, tuple[Drafter, Verdict]]


class Models(Store, Protocol):
    """What pairs ask of the store; `store.Library` is one."""

    def names(self) -> tuple[Name, ...]: ...
    def resolve(self, name: str) -> core.ModelRef: ...


@dataclass(frozen=True, slots=True)
class _Decided:
    """seen: what it was decided by; as long as that is equal, so is the pair."""

    seen: object
    pair: Pair


class Pairs:
    """Pairs targets with drafters.

    enabled: the user's switch for all of speculation; it may be turned.
    history: of this machine's pairs.  machine: as in the history's keys.
    vocabularies: else those that are kept beside the history.
    on_gpu: says whether a GPU computes here, where small targets are not worth a drafter.
    Methods read files: call them off the event loop.  Safe to call from several threads.
    """

    def __init__(
        self,
        library: Models,
        rules: RuleBook,
        *,
        enabled: bool = True,
        history: History | None = None,
        machine: str = "",
        vocabularies: Vocabularies | None = None,
        on_gpu: Callable[[], bool] = lambda: True,
    ) -> None:
        self._library = library
        self._rules = rules
        self.enabled = enabled
        self._verdicts = Verdicts(history, machine)
        self._vocabularies = vocabularies or Vocabularies.in_state_dir(history)
        self._discovery = DrafterDiscovery(library, self._vocabularies, on_gpu)
        self._decided: dict[tuple[str, str], _Decided] = {}

    def pair(self, target: core.ModelRef) -> Pair:
        """Never raises for a drafter's sake: what is wrong with it becomes reason and detail."""
        refusal = refusals.of_target(target) if self.enabled else refusals.SWITCHED_OFF
        if refusal is not None:
            return Pair(target=target, reason=refusal.reason, detail=refusal.detail)
        rule = self._rules.rule_for(target.name)
        key, seen = (target.name, target.digest), self._seen(rule)
        known = self._decided.get(key)
        if known is None or known.seen != seen or not _is_installed(known.pair.drafter):
            known = _Decided(seen, self._decide(target, rule))
            if _can_be_cached(known.pair, rule):
                if len(self._decided) >= _MAX_DECIDED:
                    self._decided.clear()
                self._decided[key] = known
        self._vocabularies.save()
        return replace(known.pair, target=target)

    def scan(self, should_stop: Callable[[], bool]) -> None:
        """Read the headers of the whole store, which takes seconds on its first day: a request that
        is the first to need a drafter from the shelf need not wait for them.
        """
        if self.enabled:
            with contextlib.suppress(StoreError):
                self._discovery.scan(should_stop)
            self._vocabularies.save()

    def _seen(self, rule: Rule | None) -> object:
        return rule, self._library.stamp(), self._verdicts.stamp()

    def _decide(self, target: core.ModelRef, rule: Rule | None) -> Pair:
        lost: _Lost = {}
        pair = self._chosen(target, rule, lost)
        if not lost:
            return pair
        pays = pair.drafter
        if pays is not None and self._verdict(target, pays).outcome is not PairOutcome.PAYS:
            pays = None
        skipped_drafters = (_skipped_drafter(target, *one, pays) for one in lost.values())
        return replace(pair, skipped_drafters=tuple(skipped_drafters))

    def _chosen(self, target: core.ModelRef, rule: Rule | None, lost: _Lost) -> Pair:
        """Choose the pair; add to `lost` the drafters that are skipped."""
        first_refusal: Refusal | None = None
        for candidate in self._candidates(target, rule):
            if isinstance(candidate, Refusal):
                refusal: Refusal | None = candidate
            elif (refusal := self._refusal_of(target, candidate, lost)) is None:
                return _paired(target, candidate, rule)
            first_refusal = first_refusal or refusal
        shelf = ""
        if _allows_discovery(rule, was_tried=first_refusal is not None):
            found = self._discover(target, lost)
            if isinstance(found, Drafter):
                pull = self._missing(rule) if first_refusal is None else ()
                return _paired(target, found, rule, pull)
            if isinstance(found, Refusal):
                first_refusal = first_refusal or found
            else:
                shelf = found
        refusal = first_refusal or refusals.nothing_found(target.name, rule, shelf)
        return _unpaired(target, refusal, rule, self._missing(rule))

    # --------------------------------------------------------------- candidates

    def _candidates(self, target: core.ModelRef, rule: Rule | None) -> Iterator[Drafter | Refusal]:
        """In order of preference; a rule without drafters of the user's own silences all others."""
        if rule is not None and rule.origin == USER and not rule.drafters:
            return
        if target.draft is not None:
            name = f"{target.name} (its own draft)"
            yield Drafter(name=name, weights=target.draft, source=MANIFEST)
        if rule is not None:
            yield from self._named_by(rule, target)

    def _named_by(self, rule: Rule, target: core.ModelRef) -> Iterator[Drafter | Refusal]:
        installed = sorted(name.short for name in self._library.names())
        for pattern in rule.drafters:
            if is_file(pattern):
                path = Path(pattern).expanduser()
                yield _of_rule(path.name, path, rule)
                continue
            for name in installed:
                if matches(pattern, name) and name != target.name:
                    yield self._resolved(name, rule)

    def _resolved(self, name: str, rule: Rule) -> Drafter | Refusal:
        try:
            model = self._library.resolve(name)
        except SpecdError as error:
            return refusals.unreadable(name, error)
        return _of_rule(model.name, model.weights, rule)

    def _discover(self, target: core.ModelRef, lost: _Lost) -> Drafter | Refusal | str:
        """Return a drafter that pays, else the smallest unknown one, else why there is none."""
        unknown: Drafter | None = None
        does_not_pay: Refusal | None = None
        try:
            if not_worth_it := self._discovery.refusal_of(target):
                return not_worth_it
            for model in self._discovery.drafters_for(target):
                drafter = Drafter(name=model.name, weights=model.weights, source=LOCAL_STORE)
                verdict = self._verdict(target, drafter)
                if verdict.outcome is PairOutcome.PAYS:
                    return drafter
                if verdict.outcome is PairOutcome.LOSES:
                    refusal = _skip_drafter(target, drafter, verdict, lost)
                    does_not_pay = does_not_pay or refusal
                else:
                    unknown = unknown or drafter
        except SpecdError as error:
            return f"its own file cannot be read: {error}"
        return unknown or does_not_pay or "no model here that is small enough speaks its vocabulary"

    def _missing(self, rule: Rule | None) -> tuple[str, ...]:
        """Of what the rule would have pulled, what is not there."""
        if rule is None:
            return ()
        installed = {name.short for name in self._library.names()}
        return tuple(name for name in rule.pull if not any(matches(name, n) for n in installed))

    # ------------------------------------------------------------------ checks

    def _refusal_of(self, target: core.ModelRef, drafter: Drafter, lost: _Lost) -> Refusal | None:
        try:
            facts = self._vocabularies.facts(drafter.weights)
            if refusal := refusals.of_drafter(drafter.name, facts):
                return refusal
            difference = self._vocabularies.difference(target.weights, drafter.weights)
        except SpecdError as error:
            return refusals.unreadable(drafter.name, error)
        if difference:
            return refusals.of_vocabularies(target.name, drafter.name, difference)
        if drafter.source == USER or _is_demo(target):
            return None  # who asks for it by name, shall have it
        verdict = self._verdict(target, drafter)
        if verdict.outcome is PairOutcome.LOSES:
            return _skip_drafter(target, drafter, verdict, lost)
        return None

    def _verdict(self, target: core.ModelRef, drafter: Drafter) -> Verdict:
        return self._verdicts.of(target.weights, target.adapters, drafter.weights)


def _of_rule(name: str, weights: Path, rule: Rule) -> Drafter:
    return Drafter(name=name, weights=weights, source=rule.origin, max_draft=rule.max_draft)


def _paired(
    target: core.ModelRef, drafter: Drafter, rule: Rule | None, pull: tuple[str, ...] = ()
) -> Pair:
    if rule is None or drafter.source not in {rule.origin, LOCAL_STORE}:
        return Pair(target=target, drafter=drafter)
    # What was published, was measured with the drafters of the rule.
    expected = rule.expected if drafter.source == rule.origin else {}
    return Pair(target=target, drafter=drafter, rule=rule.said, expected=expected, pull=pull)


def _skip_drafter(
    target: core.ModelRef, drafter: Drafter, verdict: Verdict, lost: _Lost
) -> Refusal:
    """Add a drafter that loses to `lost`; return the refusal."""
    lost[drafter.weights] = drafter, verdict
    return refusals.does_not_pay(target.name, drafter.name, verdict)


def _skipped_drafter(
    target: core.ModelRef, drafter: Drafter, verdict: Verdict, pays: Drafter | None
) -> SkippedDrafter:
    """pays: the drafter that is used instead, if it pays."""
    instead = pays.name if pays is not None else ""
    return SkippedDrafter(
        name=drafter.name,
        weights=drafter.weights,
        gain=verdict.gain or 0.0,
        n_requests=verdict.n_requests,
        n_drafted=verdict.n_drafted,
        n_accepted=verdict.n_accepted,
        n_answers_left=verdict.n_answers_left if pays is None else None,
        n_retries=verdict.n_retries,
        detail=refusals.does_not_pay(target.name, drafter.name, verdict, instead).detail,
    )


def _unpaired(
    target: core.ModelRef, refusal: Refusal, rule: Rule | None, pull: tuple[str, ...]
) -> Pair:
    return Pair(
        target=target,
        reason=refusal.reason,
        detail=refusal.detail,
        rule=rule.said if rule is not None else "",
        expected=rule.expected if rule is not None else {},
        pull=pull,
    )


def _allows_discovery(rule: Rule | None, *, was_tried: bool) -> bool:
    """A rule that forbids is final; so is a user's, once one of the drafters it names was there."""
    if rule is None:
        return True
    return bool(rule.drafters) and not (rule.origin == USER and was_tried)


def _is_demo(target: core.ModelRef) -> bool:
    built_in = demo.stored_demo() if target.name == demo.NAME.short else None
    return built_in is not None and target.weights == built_in.weights


def _is_installed(drafter: Drafter | None) -> bool:
    return drafter is None or os.path.exists(drafter.weights)  # noqa: PTH110 - asked at every request


def _can_be_cached(pair: Pair, rule: Rule | None) -> bool:
    """Not what a file decided that may be mended, or exchanged, without the store's knowledge."""
    names_files = rule is not None and any(map(is_file, rule.drafters))
    return pair.reason is not NoPair.UNREADABLE and not names_files
