"""Join the words that bash splits at the colon of a model's name.

bash ends a word at a colon: for `specd run llama3.2:1` it sends `llama3.2`, `:` and `1`.  The
completion that it inserts replaces the `1` only.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Final

#: Variables that typer's bash script sets.
_MODE: Final = "_SPECD_COMPLETE"
_WORDS: Final = "COMP_WORDS"
_CURSOR: Final = "COMP_CWORD"
#: The part of the name before the colon at which bash split it.
COLON_PREFIX: Final = "_SPECD_COMPLETE_BEFORE"


def join_split_names(environment: MutableMapping[str, str]) -> None:
    """Join the split words of a completion request, and store the text before the last colon.

    An environment from another shell, or without a request, is not changed.
    """
    if environment.get(_MODE) != "complete_bash":
        return
    words = environment.get(_WORDS, "").split("\n")
    cursor = environment.get(_CURSOR, "")
    if not cursor.isdecimal() or int(cursor) >= len(words):
        return
    joined, position = _join_at_colons(words, int(cursor))
    before, colon, last = joined[position].rpartition(":")
    # bash replaces a word with a colon as a whole if it did not split it.
    if colon and words[int(cursor)] in {last, ":"}:
        joined[position] = last
        environment[COLON_PREFIX] = before + colon
    environment[_WORDS] = "\n".join(joined)
    environment[_CURSOR] = str(position)


def _join_at_colons(words: Sequence[str], cursor: int) -> tuple[list[str], int]:
    """Return the words, joined at colons, and the index of the word at `cursor`."""
    joined: list[str] = []
    position = cursor
    for index, word in enumerate(words):
        is_rest = word == ":" or (bool(word) and index > 0 and words[index - 1] == ":")
        if is_rest and len(joined) > 1:  # the first word is the program
            joined[-1] += word
        else:
            joined.append(word)
        if index == cursor:
            position = len(joined) - 1
    return joined, position
