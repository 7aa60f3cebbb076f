"""Count the models with a drafter, and the reasons why others have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specd.core import NoPair, Pair
from specd.doctor.finding import Finding, absent, ok, warning
from specd.errors import SpecdError
from specd.pairs import Pairs
from specd.store import Library

_TOPIC: Final = "drafters"
#: How many names are printed.
_MANY: Final = 3
#: Each follows a number of models.
WHY: Final[Mapping[NoPair | None, str]] = {
    NoPair.NOT_FOUND: "for which no drafter is installed",
    NoPair.VOCABULARY_DIFFERS: "whose drafter has another vocabulary",
    NoPair.UNREADABLE: "whose drafter cannot be used",
    NoPair.REFUSED_BY_RULE: "for which a rule forbids drafting",
    NoPair.DISABLED_BY_USER: "for which it is switched off",
    NoPair.LOAD_FAILED: "whose drafter could not be loaded",
    NoPair.CANNOT_REWIND: "of an architecture that cannot remove tokens",
    NoPair.EMBEDS: "that are embedding models",
    NoPair.NO_VRAM: "whose drafter does not fit on the GPU",
    NoPair.DOES_NOT_PAY: "whose drafter did not pay",
    NoPair.NOT_EXACT: "whose text could change with drafts",
    NoPair.UPSTREAM: "that another server runs",
}


def drafters(library: Library, pairs: Pairs, *, enabled: bool) -> Finding:
    """Return the finding on drafters.

    Unreadable models are part of another finding, and embedding models need no drafter.
    """
    if not enabled:
        words = "OLLAMA_SPECULATIVE_DECODE switches speculation off for all models"
        return warning(_TOPIC, words, "unset it, unless this is intended")
    found = list(_pairs(library, pairs))
    with_one = [pair for pair in found if pair.drafter is not None]
    reasons = Counter(pair.reason for pair in found if pair.drafter is None)
    if not found:
        return absent(_TOPIC, "there is no model that could have a drafter")
    words = f"{len(with_one)} of {len(found)} models have a drafter{_named(with_one)}"
    if reasons:
        reported = (f"{n} {WHY.get(why, why)}" for why, n in reasons.most_common())
        words += f"; the others: {', '.join(reported)}"
    if with_one:
        return ok(_TOPIC, words)
    return warning(
        _TOPIC, words, "`specd pairs` explains why, `specd pairs suggest` names drafters to pull"
    )


def _pairs(library: Library, pairs: Pairs) -> Iterator[Pair]:
    for name in library.names():
        try:
            model = library.resolve(name.full)
            if "completion" in model.capabilities:
                yield pairs.pair(model)
        except SpecdError:
            continue


def _named(found: Sequence[Pair]) -> str:
    """Return the first few pairs in parentheses."""
    names = [f"{pair.target.name} ← {pair.drafter.name}" for pair in found if pair.drafter]
    more = ", ..." if len(names) > _MANY else ""
    return f" ({', '.join(names[:_MANY])}{more})" if names else ""
