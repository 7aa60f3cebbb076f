"""The llguidance grammar for thinking: free text between two tags before the answer.

A tag is text, or control tokens, or both in turn.  No text can spell a control token, because such
a token has no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specd.core import TokenId

#: no_forcing allows every tokenization of a prescribed text, not only the tokenizer's own.  Then a
#: mask and the check of a single token agree, and the tokenizer is never called.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
_TERMINALS = r"""
text: /(?s:.+)/
space: /[ \t\r\n]{1,4}/
"""


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """The tags around thinking.

    opening: empty if the prompt already contains it.
    control_tokens: those of the vocabulary without end tokens; thinking may contain them.
    """

    opening: tuple[str | TokenId, ...]
    closing: tuple[str | TokenId, ...]
    control_tokens: tuple[TokenId, ...] = ()


def with_thinking(tags: ThinkingTags | None) -> str:
    """Return a grammar around the one named `answer`; tags None: without thinking."""
    if tags is None:
        return _OPTIONS + "start: @answer"
    thought, rules = _thinking_rules(tags)
    before = f"{_sequence(tags.opening)} {thought} space?".strip()
    start = f"({before})? @answer" if tags.opening else f"{before} @answer"
    return "\n".join([f"{_OPTIONS}start: {start}", *rules, _TERMINALS])


def _thinking_rules(tags: ThinkingTags) -> tuple[str, list[str]]:
    """Return an expression that ends with the first closing tag, and the rules that it needs."""
    first, *others = tags.closing
    control_tokens = [token for token in tags.control_tokens if token != first]
    control = f"<[{','.join(_ranges(control_tokens))}]>" if control_tokens else ""
    if isinstance(first, str):
        tag = json.dumps(first)
        rules = [f"last[suffix={tag}]: /(?s:.*)/"]
        if control:
            # Text before a control token must not contain the tag either, or thinking would go on.
            rules += ["open: OPEN", f"OPEN: /(?s:.+)/ & ~(/(?s:.*)/ {tag} /(?s:.*)/)"]
        return f"{f'(open? {control})* ' if control else ''}last {_sequence(others)}", rules
    rules = [f"rest: ({control} text?)*" if control else 'rest: ""']
    thought, close = "text? rest", _sequence(tags.closing)
    if others and isinstance(others[0], str):
        # Harmony: each message has a name after the same control token, and one is the answer's.
        rules += ["other: OTHER", f"OTHER: /(?s:.+)/ & ~{json.dumps(others[0])}"]
        thought += f" (<[{first}]> other? rest)*"
    return f"{thought} {close}", rules


def _sequence(parts: Sequence[str | TokenId]) -> str:
    return " ".join(json.dumps(x) if isinstance(x, str) else f"<[{x}]>" for x in parts)


def _ranges(tokens: Sequence[TokenId]) -> list[str]:
    """Return the ids as ranges, since most of a vocabulary's control tokens are consecutive."""
    in_rows = groupby(enumerate(sorted(tokens)), key=lambda pair: pair[1] - pair[0])
    rows = [[token for _, token in row] for _, row in in_rows]
    return [f"{row[0]}-{row[-1]}" for row in rows]
