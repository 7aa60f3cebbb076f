"""The tags around a model's thinking, in templates and in answers."""

from __future__ import annotations

#: Opening and closing tag of each family, the most common first.
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


def thinking_tags(template: str) -> tuple[str, str] | None:
    """Return the first pair of tags that both occur in the template; None if there is none."""
    return next((pair for pair in THINKING_TAGS if all(tag in template for tag in pair)), None)
