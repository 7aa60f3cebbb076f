"""What may be thought before a grammar begins: free text between two tags, in llguidance's words.

A tag is text, or control tokens, or both in turn: a control token has no bytes, so that no text
spells it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specd.core import TokenId

#: Without forcing every spelling of a prescribed text is allowed, not the tokenizer's own alone: a
#: mask and a single token's check then agree, and nothing asks the tokenizer.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
_TERMINALS = r"""
text: /(?s:.+)/
space: /[ \t\r\n]{1,4}/
"""


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """opening: nothing where the prompt has opened it.

    marks: the control tokens of the vocabulary but for ends, which a model may think, too.
    """

    opening: tuple[str | TokenId, ...]
    closing: tuple[str | TokenId, ...]
    control_tokens: tuple[TokenId, ...] = ()


def with_thinking(tags: ThinkingTags | None) -> str:
    """A grammar around the one that is named `answer`; None lets nothing stand before it."""
    if tags is None:
        return _OPTIONS + "start: @answer"
    thought, rules = _thinking_rules(tags)
    before = f"{_sequence(tags.opening)} {thought} space?".strip()
    start = f"({before})? @answer" if tags.opening else f"{before} @answer"
    return "\n".join([f"{_OPTIONS}start: {start}", *rules, _TERMINALS])


def _thinking_rules(tags: ThinkingTags) -> tuple[str, list[str]]:
    """What ends with the closing tag's first occurrence, and the rules that it needs."""
    first, *others = tags.closing
    control_tokens = [token for token in tags.control_tokens if token != first]
    mark = f"<[{','.join(_ranges(control_tokens))}]>" if control_tokens else ""
    if isinstance(first, str):
        tag = json.dumps(first)
        rules = [f"last[suffix={tag}]: /(?s:.*)/"]
        if mark:
            # The text before a mark holds no tag either, or it would go on behind it.
            rules += ["open: OPEN", f"OPEN: /(?s:.+)/ & ~(/(?s:.*)/ {tag} /(?s:.*)/)"]
        return f"{f'(open? {mark})* ' if mark else ''}last {_sequence(others)}", rules
    rules = [f"rest: ({mark} text?)*" if mark else 'rest: ""']
    thought, close = "text? rest", _sequence(tags.closing)
    if others and isinstance(others[0], str):
        # Harmony: each message has a name behind the same mark, and one name is the answer's.
        rules += ["other: OTHER", f"OTHER: /(?s:.+)/ & ~{json.dumps(others[0])}"]
        thought += f" (<[{first}]> other? rest)*"
    return f"{thought} {close}", rules


def _sequence(parts: Sequence[str | TokenId]) -> str:
    return " ".join(json.dumps(x) if isinstance(x, str) else f"<[{x}]>" for x in parts)


def _ranges(tokens: Sequence[TokenId]) -> list[str]:
    """Vocabularies have thousands of control tokens, and most of them in a row."""
    in_rows = groupby(enumerate(sorted(tokens)), key=lambda pair: pair[1] - pair[0])
    rows = [[token for _, token in row] for _, row in in_rows]
    return [f"{row[0]}-{row[-1]}" for row in rows]
