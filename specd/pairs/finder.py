"""Find the drafter of a target.

The choice is the manifest's own drafter, else the first of the closest rule that fits, else the
smallest model of the local store with the same vocabulary.

If a drafter does not fit, or did not pay on this machine, the target is served without it.  The
pair then has the reason, as a sentence for the user.
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
#: Most pairs to cache.
_MAX_DECIDED: Final = 1000

#: Drafters that are skipped because they do not pay, by their weights.
_Lost = dict[Path, tuple[Drafter, Verdict]]


class Models(Store, Protocol):
    """The part of the store that pairs use, such as `store.Library`."""

    def names(self) -> tuple[Name, ...]: ...
    def resolve(self, name: str) -> core.LocalModel: ...


@dataclass(frozen=True, slots=True)
class _Decided:
    """A cached pair.  seen: the inputs of the choice; the pair is valid while they are equal."""

    seen: object
    pair: Pair


class Pairs:
    """Pairs targets with drafters.

    enabled: whether speculative decoding is on; may be changed.
    history: measurements of pairs.  machine: this machine's name in the history's keys.
    vocabularies: None uses those in the folder of the history.
    on_gpu: returns whether models run on a GPU; a drafter does not pay for small targets there.
    Methods read files: call them in a thread.  Safe to use from several threads.
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

    def pair(self, target: core.LocalModel) -> Pair:
        """Return the target's pair; a fault of a drafter becomes its reason, not an exception."""
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
        """Read the headers of the whole store, until `should_stop` returns True.

        The first time this takes seconds.  Done in advance, it keeps requests from waiting.
        """
        if self.enabled:
            with contextlib.suppress(StoreError):
                self._discovery.scan(should_stop)
            self._vocabularies.save()

    def _seen(self, rule: Rule | None) -> object:
        return rule, self._library.stamp(), self._verdicts.stamp()

    def _decide(self, target: core.LocalModel, rule: Rule | None) -> Pair:
        lost: _Lost = {}
        pair = self._chosen(target, rule, lost)
        if not lost:
            return pair
        pays = pair.drafter
        if pays is not None and self._verdict(target, pays).outcome is not PairOutcome.PAYS:
            pays = None
        skipped_drafters = (_skipped_drafter(target, *one, pays) for one in lost.values())
        return replace(pair, skipped_drafters=tuple(skipped_drafters))

    def _chosen(self, target: core.LocalModel, rule: Rule | None, lost: _Lost) -> Pair:
        """Choose the pair; add to `lost` the drafters that are skipped."""
        first_refusal: Refusal | None = None
        for candidate in self._candidates(target, rule):
            if isinstance(candidate, Refusal):
                refusal: Refusal | None = candidate
            elif (refusal := self._refusal_of(target, candidate, lost)) is None:
                return _paired(target, candidate, rule)
            first_refusal = first_refusal or refusal
        not_found = ""
        if _allows_discovery(rule, was_tried=first_refusal is not None):
            found = self._discover(target, lost)
            if isinstance(found, Drafter):
                pull = self._missing(rule) if first_refusal is None else ()
                return _paired(target, found, rule, pull)
            if isinstance(found, Refusal):
                first_refusal = first_refusal or found
            else:
                not_found = found
        refusal = first_refusal or refusals.nothing_found(target.name, rule, not_found)
        return _unpaired(target, refusal, rule, self._missing(rule))

    # --------------------------------------------------------------- candidates

    def _candidates(
        self, target: core.LocalModel, rule: Rule | None
    ) -> Iterator[Drafter | Refusal]:
        """Yield candidates in order of preference; none if a user's rule forbids drafting."""
        if rule is not None and rule.origin == USER and not rule.drafters:
            return
        if target.draft is not None:
            name = f"{target.name} (its own draft)"
            yield Drafter(name=name, weights=target.draft, source=MANIFEST)
        if rule is not None:
            yield from self._named_by(rule, target)

    def _named_by(self, rule: Rule, target: core.LocalModel) -> Iterator[Drafter | Refusal]:
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

    def _discover(self, target: core.LocalModel, lost: _Lost) -> Drafter | Refusal | str:
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
        return unknown or does_not_pay or "no model here is small enough and has its vocabulary"

    def _missing(self, rule: Rule | None) -> tuple[str, ...]:
        """Return the names that the rule would pull and that are not installed."""
        if rule is None:
            return ()
        installed = {name.short for name in self._library.names()}
        return tuple(name for name in rule.pull if not any(matches(name, n) for n in installed))

    # ------------------------------------------------------------------ checks

    def _refusal_of(self, target: core.LocalModel, drafter: Drafter, lost: _Lost) -> Refusal | None:
        name_and_weights = target.name, target.weights
        if refusal := self._vocabularies.refusal(drafter.name, drafter.weights, name_and_weights):
            return refusal
        if drafter.source == USER or _is_demo(target):
            return None  # the user has chosen it, whether or not it pays
        verdict = self._verdict(target, drafter)
        if verdict.outcome is PairOutcome.LOSES:
            return _skip_drafter(target, drafter, verdict, lost)
        return None

    def _verdict(self, target: core.LocalModel, drafter: Drafter) -> Verdict:
        return self._verdicts.of(target.weights, target.adapters, drafter.weights)


def _of_rule(name: str, weights: Path, rule: Rule) -> Drafter:
    return Drafter(name=name, weights=weights, source=rule.origin, max_draft=rule.max_draft)


def _paired(
    target: core.LocalModel, drafter: Drafter, rule: Rule | None, pull: tuple[str, ...] = ()
) -> Pair:
    if rule is None or drafter.source not in {rule.origin, LOCAL_STORE}:
        return Pair(target=target, drafter=drafter)
    # The published figures were measured with the rule's drafters.
    expected = rule.expected if drafter.source == rule.origin else {}
    return Pair(target=target, drafter=drafter, rule=rule.label, expected=expected, pull=pull)


def _skip_drafter(
    target: core.LocalModel, drafter: Drafter, verdict: Verdict, lost: _Lost
) -> Refusal:
    """Add a drafter that loses to `lost`; return the refusal."""
    lost[drafter.weights] = drafter, verdict
    return refusals.does_not_pay(target.name, drafter.name, verdict)


def _skipped_drafter(
    target: core.LocalModel, drafter: Drafter, verdict: Verdict, pays: Drafter | None
) -> SkippedDrafter:
    """Return the record of a skipped drafter.  pays: the drafter that is used instead, or None."""
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
    target: core.LocalModel, refusal: Refusal, rule: Rule | None, pull: tuple[str, ...]
) -> Pair:
    return Pair(
        target=target,
        reason=refusal.reason,
        detail=refusal.detail,
        rule=rule.label if rule is not None else "",
        expected=rule.expected if rule is not None else {},
        pull=pull,
    )


def _allows_discovery(rule: Rule | None, *, was_tried: bool) -> bool:
    """Return whether to search the local store.

    Not if a rule forbids drafting, nor if a drafter of a user's rule is installed.
    """
    if rule is None:
        return True
    return bool(rule.drafters) and not (rule.origin == USER and was_tried)


def _is_demo(target: core.LocalModel) -> bool:
    built_in = demo.stored_demo() if target.name == demo.NAME.short else None
    return built_in is not None and target.weights == built_in.weights


def _is_installed(drafter: Drafter | None) -> bool:
    return drafter is None or os.path.exists(drafter.weights)  # noqa: PTH110 - asked at every request


def _can_be_cached(pair: Pair, rule: Rule | None) -> bool:
    """Return False if the pair depends on a file that may change without the store's stamp."""
    names_files = rule is not None and any(map(is_file, rule.drafters))
    return pair.reason is not NoPair.UNREADABLE and not names_files
