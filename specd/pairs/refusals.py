"""The reasons why a target has no drafter, as sentences for the user."""

from __future__ import annotations

from dataclasses import dataclass

from specd import core
from specd.core import NoPair
from specd.errors import SpecdError
from specd.pairs.rules import Rule, has_wildcards
from specd.pairs.verdict import Verdict
from specd.store.architectures import CANNOT_REWIND, DIFFUSION, DRAFT_HEADS, NO_TEXT_GENERATION
from specd.store.gguf_metadata import GgufMetadata


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target has no drafter.  detail: a sentence for the user."""

    reason: NoPair
    detail: str


SWITCHED_OFF = Refusal(NoPair.DISABLED_BY_USER, "Speculative decoding is switched off.")


def of_target(target: core.LocalModel) -> Refusal | None:
    """Return why no drafter is possible for the target; None if one is."""
    if target.is_embedding_only:
        return Refusal(
            NoPair.EMBEDS,
            f"{target.name} gives vectors instead of text, so there is nothing to draft.",
        )
    if target.architecture in CANNOT_REWIND:
        return Refusal(
            NoPair.CANNOT_REWIND,
            f"{target.name} is of the architecture {target.architecture}, which cannot remove"
            " rejected tokens from its memory.",
        )
    return _of_architecture(target.name, target.architecture)


def of_drafter(name: str, facts: GgufMetadata) -> Refusal | None:
    """Return why the model cannot draft for any target; None if it can."""
    who, architecture = f"The drafter {name}", facts.architecture
    if facts.has_pooling:
        return Refusal(NoPair.UNREADABLE, f"{who} gives vectors instead of text.")
    if architecture in NO_TEXT_GENERATION:
        return Refusal(
            NoPair.UNREADABLE,
            f"{who} is of the architecture {architecture}, which cannot continue a text.",
        )
    return _of_architecture(who, architecture)


def _of_architecture(who: str, architecture: str) -> Refusal | None:
    if architecture in DIFFUSION:
        return Refusal(
            NoPair.CANNOT_REWIND,
            f"{who} is of the architecture {architecture}, which is not a language model's.",
        )
    if architecture in DRAFT_HEADS:
        return Refusal(
            NoPair.UNREADABLE,
            f"{who} is a drafting head ({architecture}), not a model that can be run by itself.",
        )
    return None


def of_vocabularies(target: str, drafter: str, difference: str) -> Refusal:
    """Return the refusal for different vocabularies.  difference: the end of a sentence."""
    return Refusal(
        NoPair.VOCABULARY_DIFFERS,
        f"The drafter {drafter} has another vocabulary than {target}: {difference}.",
    )


def unreadable(drafter: str, error: SpecdError) -> Refusal:
    return Refusal(NoPair.UNREADABLE, sentence(f"The drafter {drafter} cannot be used: {error}"))


def does_not_pay(target: str, drafter: str, verdict: Verdict, instead: str = "") -> Refusal:
    """Return the refusal of a drafter that made its target slower.

    instead: the drafter that is used and pays, "" for none.
    """
    share = verdict.n_accepted / max(verdict.n_drafted, 1)
    n_left = verdict.n_answers_left
    again = f"after {n_left} more answer{'s' * (n_left != 1)}"
    if instead:
        again = f"when {instead} no longer pays"
    return Refusal(
        NoPair.DOES_NOT_PAY,
        f"The drafter {drafter} made {target} slower here: at best {verdict.gain or 0.0:.2f} times"
        f" the plain speed over {verdict.n_requests} answers, {share:.0%} of {verdict.n_drafted}"
        f" drafted tokens accepted. It is tried again {again}, or after"
        f" `specd pairs {target} --forget`.",
    )


def nothing_found(target: str, rule: Rule | None, not_found: str) -> Refusal:
    """Return the refusal of a target without candidates.

    not_found: why the local store has none, as the end of a sentence; "" if it was not searched.
    """
    if rule is None:
        and_ = f", and {not_found}" if not_found else ""
        return Refusal(NoPair.NOT_FOUND, f"No rule names a drafter for {target}{and_}.")
    if not rule.drafters:
        why = rule.reason or f"a rule of the {rule.origin}'s pairs file says so"
        return Refusal(NoPair.REFUSED_BY_RULE, sentence(f"No model drafts for {target}: {why}"))
    return Refusal(NoPair.NOT_FOUND, _none_installed(target, rule))


def _none_installed(target: str, rule: Rule) -> str:
    none = f"No drafter for {target} is installed"
    names = [name for name in rule.drafters if not has_wildcards(name)]
    if rule.pull:
        return f"{none}; `specd pull {rule.pull[0]}` gets one."
    if rule.reason:
        return sentence(f"{none}: {rule.reason}")
    return f"{none}; any of these would do: {', '.join(names)}." if names else f"{none}."


def sentence(text: str) -> str:
    """Return the text with a full stop, unless it already ends a sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
