"""Between which tags a model thinks, as far as its template or its parser's name tells."""

from __future__ import annotations

#: Opening and closing tag of each family.
THINKING_TAGS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE
    ("<reasoning>", "</reasoning>"),
    ("Here is my thought process:", "Here is my response:"),  # Granite 3
)
DEFAULT = THINKING_TAGS[0]

_OF_PARSERS = {
    "ministral": ("[THINK]", "[/THINK]"),
    "gemma4": ("<|channel>thought", "<channel|>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
}


def thinking_tags(template: str | None, parser: str = "") -> tuple[str, str] | None:
    """The first pair of which the template names both; else that of the parser, if any."""
    text = template or ""
    named = (pair for pair in THINKING_TAGS if pair[0] in text and pair[1] in text)
    return next(named, _OF_PARSERS.get(parser))
